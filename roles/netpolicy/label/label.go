// Package label has the labels of Kubernetes' objects: their syntax, and the selectors of objects by them.
package label

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Namespace is the label with its name that the API server gives each namespace.
const Namespace = "kubernetes.io/metadata.name"

// Selector selects objects by their labels. Its requirements are sorted by their texts and without duplicates. An empty one
// selects all objects.
type Selector []Requirement

// Requirement is one condition on a label. Values are sorted.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// The operators.
const (
	In           = "In"
	NotIn        = "NotIn"
	Exists       = "Exists"
	DoesNotExist = "DoesNotExist"
)

// String returns the requirement in the form of kubectl: "tier notin (a,b)".
func (r *Requirement) String() string {
	switch r.Operator {
	case In:
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")"
	case NotIn:
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")"
	case DoesNotExist:
		return "!" + r.Key
	}
	return r.Key
}

// String returns the selector in a canonical form: two selectors with one text are equal.
func (s Selector) String() string {
	texts := make([]string, len(s))
	for i := range s {
		texts[i] = s[i].String()
	}
	return strings.Join(texts, ",")
}

// Matches reports whether the selector selects an object with these labels.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s {
		r := &s[i]
		value, has := labels[r.Key]
		is := has
		switch r.Operator {
		case In:
			is = has && slices.Contains(r.Values, value)
		case NotIn:
			is = !has || !slices.Contains(r.Values, value)
		case DoesNotExist:
			is = !has
		}
		if !is {
			return false
		}
	}
	return true
}

// Bounds of the parts of labels
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set).
const (
	MaxName   = 63
	maxPrefix = 253
)

// IsWord reports whether text has letters and digits, and others of the characters in between, up to a length.
func IsWord(text, between string, upper bool, longest int) bool {
	alphanumeric := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || upper && 'A' <= c && c <= 'Z'
	}
	if text == "" || len(text) > longest || !alphanumeric(text[0]) || !alphanumeric(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if !alphanumeric(text[i]) && strings.IndexByte(between, text[i]) < 0 {
			return false
		}
	}
	return true
}

func isName(text string) bool { return IsWord(text, "-_.", true, MaxName) }

// isDomain reports whether text is a DNS subdomain.
func isDomain(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		if !IsWord(part, "-", false, len(part)) {
			return false
		}
	}
	return len(text) <= maxPrefix
}

// CheckKey returns an error for a text that is not a label's key.
func CheckKey(key string) error {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		prefix, name = "a", key
	}
	if !isName(name) || !isDomain(prefix) {
		return fmt.Errorf("%q is not a label's key", key)
	}
	return nil
}

// CheckValue returns an error for a text that is not a label's value.
func CheckValue(value string) error {
	if value != "" && !isName(value) {
		return fmt.Errorf("%q is not a label's value", value)
	}
	return nil
}

// Check returns the errors of labels that the API server refuses, in the order of their keys.
func Check(labels map[string]string) (errs []error) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		for _, err := range []error{CheckKey(k), CheckValue(labels[k])} {
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// CheckPod returns an error for labels of a pod that the API server refuses.
func CheckPod(labels map[string]string) error {
	errs := Check(labels)
	if len(errs) == 0 {
		return nil
	}
	for i := range errs {
		errs[i] = fmt.Errorf("labels: %w", errs[i])
	}
	return fmt.Errorf("pod: %w", errors.Join(errs...))
}
