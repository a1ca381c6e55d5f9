package rolestest

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// storeText is all that the node's store holds, as canonical text without
// times. Networks' notes of shared objects count too: GC removes them.
func (e *Env) storeText() string {
	e.t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test"})
	if err != nil {
		e.t.Fatal(err)
	}
	defer done()
	var b strings.Builder
	line := func(v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			e.t.Fatal(err)
		}
		b.Write(raw)
		b.WriteByte('\n')
	}
	err = h.Store.View(context.Background(), func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		if err != nil {
			return err
		}
		for _, a := range atts {
			line(a.Key)
		}
		pools, err := tx.Pools()
		if err != nil {
			return err
		}
		for _, id := range pools {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			for l, err := range p.Leases() {
				if err != nil {
					return err
				}
				line([]any{l.Address, l.Owner})
			}
		}
		nets, err := tx.Networks()
		for _, n := range nets {
			line([]any{n.Name, n.Shared})
		}
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return b.String()
}
