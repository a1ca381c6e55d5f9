package netpolicy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
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

// namespaceNamed selects the namespace with a name.
func namespaceNamed(name string) label.Selector {
	return label.Selector{{Key: label.Namespace, Operator: label.In, Values: []string{name}}}
}

// selector returns the valid parts of a selector.
func (l *LabelSelector) selector(f *faults, path string) (s label.Selector) {
	f.labels(path+".matchLabels", l.MatchLabels)
	for k, v := range l.MatchLabels {
		s = append(s, label.Requirement{Key: k, Operator: label.In, Values: []string{v}})
	}
	for i, e := range l.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		f.key(at+".key", e.Key)
		values := slices.Compact(slices.Sorted(slices.Values(e.Values)))
		switch e.Operator {
		case label.In, label.NotIn:
			if len(values) == 0 {
				f.add(at+".values", "is empty: %s needs values", e.Operator)
			}
			for _, v := range values {
				f.value(at+".values", v)
			}
		case label.Exists, label.DoesNotExist:
			if len(values) > 0 {
				f.add(at+".values", "must be empty with %s", e.Operator)
			}
		default:
			f.add(at+".operator", "%q is not In, NotIn, Exists or DoesNotExist", e.Operator)
		}
		s = append(s, label.Requirement{Key: e.Key, Operator: e.Operator, Values: values})
	}
	sorting.Func(s, func(a, b label.Requirement) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(s, func(a, b label.Requirement) bool { return a.String() == b.String() })
}

func (f *faults) labels(path string, labels map[string]string) {
	for _, err := range label.Check(labels) {
		f.add(path, "%w", err)
	}
}

func (f *faults) key(path, key string) {
	if err := label.CheckKey(key); err != nil {
		f.add(path, "%w", err)
	}
}

func (f *faults) value(path, value string) {
	if err := label.CheckValue(value); err != nil {
		f.add(path, "%w", err)
	}
}
