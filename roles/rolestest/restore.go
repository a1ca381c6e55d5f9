package rolestest

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
)

// restorers restore what attachments need after another program flushed nftables: STATUS does the
// first, an ADD that needs an element the second, and the third follows a reload of firewalld.
var restorers = []struct {
	name    string
	restore func(context.Context, *netops.Net) error
}{
	{"absent rules", func(ctx context.Context, n *netops.Net) error {
		_, err := n.RestoreRules(ctx)
		return err
	}},
	{"a new table", func(ctx context.Context, n *netops.Net) error {
		return makeAndRemove(ctx, n, &netops.Element{Set: "macguard_ports", Key: []string{"probe0"}, Label: "cnibox:probe"})
	}},
	{"sources", func(ctx context.Context, n *netops.Net) error {
		if errors.Is(n.Firewalld(ctx), netops.ErrNotExist) {
			return nil
		}
		return makeAndRemove(ctx, n, &netops.ZoneSource{Zone: "internal", Address: netip.MustParseAddr("192.0.2.99")})
	}},
}

// makeAndRemove makes an object, and with it the absent recorded objects of its kind, and removes it.
func makeAndRemove(ctx context.Context, n *netops.Net, o netops.Object) error {
	spec := netops.Spec{Objects: []netops.Object{o}}
	if err := n.Ensure(ctx, spec, nil); err != nil {
		return err
	}
	return n.Remove(ctx, spec, nil)
}

// restored removes the attachment and its network while a process restores what it needs: after
// that process has read the records, and before it makes the objects. What was removed stays so.
func (s Suite) restored(t *testing.T, c Conf) {
	b := s.bench(t, c)
	for _, r := range restorers {
		round := func(beside bool) string {
			b.host()
			b.OK(b.call("ADD"))
			if c.Flush != nil {
				c.Flush(t)
			} else if err := netopstest.FlushRuleset(); err != nil {
				t.Fatal(err)
			}
			left := []Call{b.call("DEL"), b.gcCall(nil)}
			b.RestoreBeside(r.restore, func() {
				for beside && len(left) > 0 && b.Run(left[0]).Code == 0 {
					left = left[1:]
				}
			})
			for _, c := range left {
				b.OK(c)
			}
			return b.state()
		}
		want := round(false)
		if have := round(true); have != want {
			t.Errorf("restoring %s beside DEL and GC: state differs\nwant:\n%s\nhave:\n%s", r.name, want, have)
		}
		b.ns.Reset(t)
	}
}

// RestoreBeside runs restore on the node, and calls between when it has read records and not yet
// made the recorded objects. Calls in between do not wait for locks.
func (e *Env) RestoreBeside(restore func(context.Context, *netops.Net) error, between func()) {
	e.t.Helper()
	ctx := e.t.Context()
	h, done, err := node.Open(ctx, node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), CacheDirs: []string{e.CacheDir()}, Role: "test", IPTables: dispatch.IPTables, Reference: migrate.ReferencePlugins{}})
	if err != nil {
		e.t.Fatal(err)
	}
	defer done()
	once := func() {
		extra := e.Extra
		e.Extra = append(extra[:len(extra):len(extra)], lockTimeoutEnv+"=20ms")
		between()
		e.Extra = extra
		between = func() {}
	}
	o := h.Net.Options()
	o.Restore, o.Forwards, o.Sources = after(o.Restore, once), after(o.Forwards, once), after(o.Sources, once)
	n := netops.New(o)
	defer n.Close()
	if err := restore(ctx, n); err != nil {
		e.t.Fatalf("restore: %v", err)
	}
}

// after calls do after read, if it read anything.
func after[T any](read func(context.Context) ([]T, error), do func()) func(context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		all, err := read(ctx)
		if len(all) > 0 {
			do()
		}
		return all, err
	}
}
