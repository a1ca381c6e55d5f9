package rolestest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// storeText returns the content of the node's store as canonical text without times. It
// includes the networks' records of shared objects, because GC removes them.
func (e *Env) storeText() string {
	e.t.Helper()
	var b strings.Builder
	line := func(v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			e.t.Fatal(err)
		}
		b.Write(raw)
		b.WriteByte('\n')
	}
	e.view(func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		if err != nil {
			return err
		}
		for _, a := range atts {
			line([]any{a.Key, parts(&a)})
		}
		claims, err := tx.Claims("")
		if err != nil {
			return err
		}
		for _, c := range claims {
			line([]any{c.Kind, c.Name, c.Owner})
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
		if err != nil {
			return err
		}
		outcomes, err := tx.AllDelegated()
		for _, d := range outcomes {
			line([]any{"delegated", d.Owner, d.State})
		}
		return err
	})
	for _, d := range e.delegations() {
		line([]any{"delegation", d.Owner})
	}
	return b.String()
}

// delegations lists the delegations of meta roles that were not deleted. If the file
// cannot be read, there are none.
func (e *Env) delegations() []store.Delegation {
	e.t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		e.t.Fatal(err)
	}
	defer done()
	var all []store.Delegation
	err = h.Store.KeepView(context.Background(), func(tx *store.KeepTx) (err error) {
		all, err = tx.Delegations("")
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		e.t.Fatal(err)
	}
	return all
}

// parts names the roles that took part in an attachment.
func parts(a *store.Attachment) []string {
	var names []string
	for _, p := range a.Parts {
		names = append(names, p.Role)
	}
	return names
}

// isAttached reports whether the call's attachment is recorded as done.
func (e *Env) isAttached(c Call) bool {
	e.t.Helper()
	done := false
	e.view(func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			pending := func(p store.Part) bool { return p.State != store.Done }
			if a.ContainerID == c.ID && a.IfName == c.IfName {
				done = !slices.ContainsFunc(a.Parts, pending)
			}
		}
		return err
	})
	return done
}

// view reads the node's state file.
func (e *Env) view(fn func(*store.Tx) error) {
	e.t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		e.t.Fatal(err)
	}
	defer done()
	if err := h.Store.View(context.Background(), fn); err != nil {
		e.t.Fatal(err)
	}
}
