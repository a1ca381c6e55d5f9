package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// verb calls one of the role's verbs with its flags' defaults.
func (b *bed) verb(tb testing.TB, name string, flags map[string]string, args ...string) (any, error) {
	tb.Helper()
	verbs := Role().Verbs()
	i := slices.IndexFunc(verbs, func(v roles.CommandVerb) bool { return v.Name == name })
	if i < 0 {
		tb.Fatalf("no verb %q", name)
	}
	all := map[string]string{}
	for _, f := range verbs[i].Flags {
		all[f.Name] = f.Default
	}
	all["kubelet-config"] = filepath.Join(b.dir, "kubelet.yaml")
	for k, v := range flags {
		if _, ok := all[k]; !ok {
			tb.Fatalf("%s has no flag %q", name, k)
		}
		all[k] = v
	}
	return verbs[i].Run(context.Background(), b.Host, all, args)
}

func (b *bed) look(tb testing.TB, args ...string) *Shown {
	tb.Helper()
	out, err := b.verb(tb, "cloud show", nil, args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out.(*Shown)
}

// states lists "address state" of every address that is not free.
func (s *Shown) states() string {
	var out []string
	for _, a := range s.Addresses {
		out = append(out, a.Address.String()+" "+a.State)
	}
	return strings.Join(out, ", ")
}

// lease leases an address to a container without an attachment's record. The namespace
// may exist or not.
func (b *bed) lease(tb testing.TB, a *handler, addr, id string, n store.Netns) {
	tb.Helper()
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{Network: "net", DataDir: store.CloudDataDir})
		if err != nil {
			return err
		}
		return p.Reserve(store.Lease{
			Address: netip.MustParseAddr(addr), Owner: store.Key{Network: "net", ContainerID: id, IfName: "eth0"}, Pod: "ns/" + id,
			Netns: n, Source: a.feed.Source(), NIC: macB, Time: b.Now(),
		})
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// gone returns a namespace that certainly no longer exists.
func gone(tb testing.TB) store.Netns {
	tb.Helper()
	n := attachment.ThisNetns(filepath.Join(tb.TempDir(), "gone"), nil)
	n.Dev, n.Inode = 4, 1<<40
	return n
}

// The verb show prints the addresses by NIC and subnet, their containers, and those that
// cool down or that the cloud withdrew.
func TestShow(t *testing.T) {
	b := newBed(t)
	if s := b.look(t); len(s.Addresses)+len(s.Sources) > 0 || !strings.Contains(s.String(), "cnibox cloud refresh") {
		t.Errorf("nothing known: %+v", s)
	}
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.4", "10.240.0.36"), nic(macB, false, "10.241.0.0/24", "10.241.0.5", "10.241.0.6", "10.241.0.64/28"))
	a := b.handlerFor(t, "")
	for _, id := range []string{"one", "two", "three"} {
		b.add(t, a, request(id)) // .5, .6, .64 of the secondary NIC
	}
	b.del(t, a, "two")
	b.pass(10 * time.Second)
	s := b.look(t)
	expect(t, s.states(), "10.241.0.5 used, 10.241.0.6 cooling, 10.241.0.64 used")
	if n := s.Sources[0].NICs; len(n) != 2 || n[0].Link != "nicA" || n[1].Link != "nicB" {
		t.Errorf("NICs %+v", n)
	}
	if c := s.Sources[0].Count; c.Size != "19" || c.Used != 2 || c.Cooling != 1 || c.Withdrawn != 0 {
		t.Errorf("%+v", c)
	}
	expect(t, b.look(t, "10.241.0.5").states(), "10.241.0.5 used")

	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.4", "10.240.0.36"), nic(macB, false, "10.241.0.0/24", "10.241.0.6"))
	b.add(t, a, request("four"))
	s = b.look(t)
	expect(t, s.states(), "10.241.0.5 withdrawn, 10.241.0.6 used, 10.241.0.64 withdrawn")
	if s.Sources[0].Withdrawn != 2 || s.Sources[0].Size != "2" || len(s.Differences) != 2 || !strings.Contains(s.Differences[0].Do, "delete the pod") {
		t.Errorf("%+v\n%+v", s.Sources[0], s.Differences)
	}
	b.del(t, a, "one")
	if s := b.look(t); s.Sources[0].Withdrawn != 1 || strings.Contains(s.String(), "2 withdrawn") {
		t.Errorf("after the DEL of one that the cloud has withdrawn: %+v\n%s", s.Sources[0], s)
	}
	head, rows := s.Table()
	if len(rows) != 3 || len(rows[0]) != len(head) {
		t.Errorf("%v %v", head, rows)
	}
	for _, want := range []string{macB + " (nicB) 10.241.0.0/24: 1 for pods, 1 used, 2 withdrawn and used", "(nicA, primary) 10.240.0.0/16: 1 for pods, 0 used", "! 10.241.0.5: "} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if _, err := b.verb(t, "cloud show", nil, "moon"); !errors.Is(err, roles.ErrUsage) {
		t.Error(err)
	}
	if _, err := b.verb(t, "cloud show", map[string]string{"cooldown": "x"}); !errors.Is(err, roles.ErrUsage) {
		t.Error(err)
	}
}

// The verb prints the pool's size beside kubelet's maximum number of pods.
func TestShowKubelet(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macB, false, "10.241.0.0/24", "10.241.0.5", "10.241.0.6"))
	b.add(t, b.handlerFor(t, ""), request("one"))
	for config, want := range map[string]string{
		"":                             "",
		"kind: KubeletConfiguration\n": "maxPods is 110, and there are 2 addresses: pods beyond",
		"maxPods: 2\n":                 "maxPods is 2, and there are 2 addresses",
		"maxPods: 1\n":                 "maxPods is 1, and there are 2 addresses",
		"maxPods: [\n":                 "read maxPods",
		"maxPods: many\n":              "read maxPods",
	} {
		path := filepath.Join(b.dir, "kubelet.yaml")
		_ = os.Remove(path)
		if config != "" {
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := b.look(t)
		if (s.Kubelet == nil) != (want == "") || !strings.Contains(s.String(), want) {
			t.Errorf("%q: %s", config, s)
		}
		if strings.Contains(want, "110") != strings.Contains(s.String(), "beyond") {
			t.Errorf("%q: %s", config, s)
		}
	}
}

// Every kind of difference is reported with advice. --fix releases only addresses of
// containers that no longer exist.
func TestReconcile(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36"), nic(macB, false, "10.241.0.0/24", "10.241.0.5", "10.241.0.6", "10.241.0.7"))
	a := b.handlerFor(t, "")
	b.add(t, a, request("one"))
	b.lease(t, a, "10.241.0.6", "dead", gone(t))
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		return tx.PutAttachment(&store.Attachment{
			Key: store.Key{Network: "other", ContainerID: "thief", IfName: "eth0"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.241.0.7/24")},
			Parts: []store.Part{{Role: "bridge", State: store.Done, Time: b.Now()}}, Created: b.Now(), Updated: b.Now(),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	// The address moves to the other NIC, a reported NIC does not exist on this host, and
	// then the cloud fails.
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36"), nic("02:00:00:00:00:0c", false, "10.242.0.0/24", "10.242.0.5"), nic(macB, false, "10.241.0.0/24", "10.241.0.6", "10.241.0.7"))
	if err := b.moves(t, a, "10.241.0.5", macA); err != nil {
		t.Fatal(err)
	}
	find := func(flags map[string]string) (map[string]string, *Reconciled) {
		out, err := b.verb(t, "cloud reconcile", flags)
		if err != nil {
			t.Fatal(err)
		}
		r := out.(*Reconciled)
		by := map[string]string{}
		for _, d := range r.Differences {
			by[d.What] += d.Is + " -> " + d.Do
		}
		return by, r
	}
	by, r := find(nil)
	for what, want := range map[string]string{
		"10.241.0.5":        "now has it on " + macA,
		"10.241.0.6":        `leased to pod "ns/dead", which does not exist -> cnibox cloud reconcile --fix`,
		"10.241.0.7":        "has it without a lease",
		"02:00:00:00:00:0c": "no link of the host has its MAC",
	} {
		if !strings.Contains(by[what], want) {
			t.Errorf("%s: %q, want %q", what, by[what], want)
		}
	}
	if r.Freed != nil || len(by) != 4 {
		t.Errorf("%+v", r)
	}
	by, r = find(map[string]string{"fix": "true"})
	if r.Freed == nil || *r.Freed != 1 || by["10.241.0.6"] != "" || len(by) != 3 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(b.leases(t), "10.241.0.5 one") || strings.Contains(b.leases(t), "dead") {
		t.Error(b.leases(t))
	}
	head, rows := r.Table()
	if len(rows) != 3 || len(head) != len(rows[0]) || !strings.Contains(r.String(), "1 addresses") {
		t.Error(head, rows, r)
	}
}

// moves requests a reply in which the cloud reports an address on another NIC.
func (b *bed) moves(tb testing.TB, a *handler, addr, mac string) error {
	tb.Helper()
	if _, err := b.verb(tb, "cloud refresh", map[string]string{"provider": "file", "file": a.feed.File}); err != nil {
		return err
	}
	return b.Store.Update(context.Background(), func(tx *store.Tx) error {
		s, err := tx.CloudSource(a.feed.Source())
		if err != nil {
			return err
		}
		for i := range s.NICs {
			if s.NICs[i].MAC == mac {
				s.NICs[i].Subnets = append(s.NICs[i].Subnets, store.CloudSubnet{Prefix: netip.MustParsePrefix("10.241.0.0/24"), Addresses: []netip.Addr{netip.MustParseAddr(addr)}})
			}
		}
		s.Withdrawn = nil
		return tx.PutCloudSource(s)
	})
}

// The verb refresh sends a request before the interval has passed, and prints the changes.
func TestRefresh(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, "")
	refresh := func(flags map[string]string) *Refreshed {
		out, err := b.verb(t, "cloud refresh", flags)
		if err != nil {
			t.Fatal(err)
		}
		return out.(*Refreshed)
	}
	b.gives(t, nic(macB, false, "10.241.0.0/24", "10.241.0.5", "10.241.0.6"))
	if r := refresh(map[string]string{"provider": "file", "file": a.feed.File}); r.Sources[0].More != 2 || r.Sources[0].Name != a.feed.Source() {
		t.Errorf("%+v", r)
	}
	b.gives(t, nic(macB, false, "10.241.0.0/24", "10.241.0.6", "10.241.0.7", "10.241.0.8", "10.241.0.64/28", "10.242.0.1"))
	b.pass(-time.Minute) // the interval has not passed
	r := refresh(nil)
	if s := r.Sources[0]; len(r.Sources) != 1 || s.Addresses != 3 || s.Ranges != 1 || s.More != 2 || s.Fewer != 1 || len(s.Dropped) != 1 || s.Fault != "" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.String(), "3 addresses and 1 ranges for pods, 2 more and 1 fewer than before") || !strings.Contains(r.String(), "not used: ") {
		t.Error(r)
	}
	if err := os.Remove(a.feed.File); err != nil {
		t.Fatal(err)
	}
	if r := refresh(nil); r.Sources[0].Fault == "" || r.Sources[0].Addresses != 3 || r.Sources[0].More+r.Sources[0].Fewer != 0 {
		t.Errorf("%+v", r)
	}
	for _, flags := range []map[string]string{{"provider": "moon"}, {"provider": "aws", "url": "http://name"}} {
		if _, err := b.verb(t, "cloud refresh", flags); !errors.Is(err, roles.ErrUsage) {
			t.Errorf("%v: %v", flags, err)
		}
	}
}

func TestShowProviders(t *testing.T) {
	b := newBed(t)
	out, err := b.verb(t, "cloud show", map[string]string{"providers": "true"})
	if err != nil {
		t.Fatal(err)
	}
	p := out.(shownProviders)
	head, rows := p.Table()
	raw, err := json.Marshal(p)
	if err != nil || len(rows) < 13 || len(head) != len(rows[0]) || !strings.Contains(string(raw), `"name":"aws"`) {
		t.Error(err, head, rows, string(raw))
	}
}
