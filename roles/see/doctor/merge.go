package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
)

// Merged is one finding of several nodes.
type Merged struct {
	Finding
	// Nodes have the finding. Count is the number of findings, which can be several on a node.
	Nodes []string `json:"nodes"`
	Count int      `json:"count"`
}

// Merge joins the equal findings of several nodes: those of one check about one object, and those
// about attachments, which differ between nodes. The findings of most nodes come first.
func Merge(reports []*Report) []Merged {
	type key struct{ id, object string }
	byKey := map[key]*Merged{}
	var order []key
	for _, r := range reports {
		for _, f := range r.Findings {
			k := key{f.ID, f.Object}
			if len(f.Attachments) > 0 {
				k.object = ""
			}
			m := byKey[k]
			if m == nil {
				m = &Merged{Finding: f}
				byKey[k], order = m, append(order, k)
			}
			m.Count++
			if !slices.Contains(m.Nodes, r.Node) {
				m.Nodes = append(m.Nodes, r.Node)
			}
		}
	}
	out := make([]Merged, 0, len(order))
	for _, k := range order {
		m := byKey[k]
		if m.Count > 1 && len(m.Attachments) > 0 {
			m.Object, m.Attachments = "several", nil
		}
		slices.Sort(m.Nodes)
		out = append(out, *m)
	}
	sorting.Stable(out, func(a, b Merged) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(len(b.Nodes), len(a.Nodes)), strings.Compare(a.ID, b.ID), strings.Compare(a.Object, b.Object))
	})
	return out
}
