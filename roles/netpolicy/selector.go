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

// Selector selects objects by their labels. The zero value selects all objects.
type Selector struct {
	// requirements are sorted by their texts and without duplicates.
	requirements []requirement
}

// requirement is one condition on a label. values are sorted.
type requirement struct {
	key, operator string
	values        []string
}

// The operators.
const (
	in           = "In"
	notIn        = "NotIn"
	exists       = "Exists"
	doesNotExist = "DoesNotExist"
)

// String returns the requirement in the form of kubectl: "tier notin (a,b)".
func (r *requirement) String() string {
	switch r.operator {
	case in:
		return r.key + " in (" + strings.Join(r.values, ",") + ")"
	case notIn:
		return r.key + " notin (" + strings.Join(r.values, ",") + ")"
	case doesNotExist:
		return "!" + r.key
	}
	return r.key
}

// String returns the selector in a canonical form: two selectors with one text are equal.
func (s Selector) String() string {
	texts := make([]string, len(s.requirements))
	for i := range s.requirements {
		texts[i] = s.requirements[i].String()
	}
	return strings.Join(texts, ",")
}

// Matches reports whether the selector selects an object with these labels.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s.requirements {
		r := &s.requirements[i]
		value, has := labels[r.key]
		is := has
		switch r.operator {
		case in:
			is = has && slices.Contains(r.values, value)
		case notIn:
			is = !has || !slices.Contains(r.values, value)
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
	return Selector{[]requirement{{NameLabel, in, []string{name}}}}
}

// selector returns the valid parts of a selector.
func (l *LabelSelector) selector(f *faults, path string) Selector {
	var s Selector
	f.labels(path+".matchLabels", l.MatchLabels)
	for k, v := range l.MatchLabels {
		s.requirements = append(s.requirements, requirement{k, in, []string{v}})
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
		s.requirements = append(s.requirements, requirement{e.Key, e.Operator, values})
	}
	sorting.Func(s.requirements, func(a, b requirement) int { return strings.Compare(a.String(), b.String()) })
	s.requirements = slices.CompactFunc(s.requirements, func(a, b requirement) bool { return a.String() == b.String() })
	return s
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
