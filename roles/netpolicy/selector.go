package netpolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
)

// LabelSelector is a metav1.LabelSelector in JSON.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"matchExpressions,omitempty"`
}

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
	in           = "In"
	notIn        = "NotIn"
	exists       = "Exists"
	doesNotExist = "DoesNotExist"
)

// String returns the requirement in the form of kubectl: "tier notin (a,b)".
func (r *Requirement) String() string {
	switch r.Operator {
	case in:
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")"
	case notIn:
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")"
	case doesNotExist:
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
		case in:
			is = has && slices.Contains(r.Values, value)
		case notIn:
			is = !has || !slices.Contains(r.Values, value)
		case doesNotExist:
			is = !has
		}
		if !is {
			return false
		}
	}
	return true
}

// namespaceNamed selects the namespace with a name.
func namespaceNamed(name string) Selector {
	return Selector{{NameLabel, in, []string{name}}}
}

// selector returns the valid parts of a selector.
func (l *LabelSelector) selector(f *faults, path string) (s Selector) {
	f.labels(path+".matchLabels", l.MatchLabels)
	for k, v := range l.MatchLabels {
		s = append(s, Requirement{k, in, []string{v}})
	}
	for i, e := range l.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		f.key(at+".key", e.Key)
		values := slices.Compact(slices.Sorted(slices.Values(e.Values)))
		switch e.Operator {
		case in, notIn:
			if len(values) == 0 {
				f.add(at+".values", "is empty: %s needs values", e.Operator)
			}
			for _, v := range values {
				f.value(at+".values", v)
			}
		case exists, doesNotExist:
			if len(values) > 0 {
				f.add(at+".values", "must be empty with %s", e.Operator)
			}
		default:
			f.add(at+".operator", "%q is not In, NotIn, Exists or DoesNotExist", e.Operator)
		}
		s = append(s, Requirement{e.Key, e.Operator, values})
	}
	sorting.Func(s, func(a, b Requirement) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(s, func(a, b Requirement) bool { return a.String() == b.String() })
}

// Bounds of the parts of labels
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set).
const (
	maxLabelName   = 63
	maxLabelPrefix = 253
)

// isWord reports whether text has letters and digits, and others of the characters in between, up to a length.
func isWord(text, between string, upper bool, longest int) bool {
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

func isLabelName(text string) bool { return isWord(text, "-_.", true, maxLabelName) }

// isDomain reports whether text is a DNS subdomain.
func isDomain(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		if !isWord(part, "-", false, len(part)) {
			return false
		}
	}
	return len(text) <= maxLabelPrefix
}

func (f *faults) labels(path string, labels map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		f.key(path, k)
		f.value(path, labels[k])
	}
}

func (f *faults) key(path, key string) {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		prefix, name = "a", key
	}
	if !isLabelName(name) || !isDomain(prefix) {
		f.add(path, "%q is not a label's key", key)
	}
}

func (f *faults) value(path, value string) {
	if value != "" && !isLabelName(value) {
		f.add(path, "%q is not a label's value", value)
	}
}

// CheckLabels returns an error for labels that the API server refuses.
func CheckLabels(labels map[string]string) error {
	var f faults
	f.labels("labels", labels)
	return f.err("pod")
}

func equalLabels(a, b map[string]string) bool { return maps.Equal(a, b) }
