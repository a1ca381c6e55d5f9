package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// TestRole checks the values that the command line and the generated documents use.
func TestRole(t *testing.T) {
	if err := tabletest.Of(Role()).Validate(); err != nil {
		t.Error(err)
	}
}

func gcRequest(valid ...string) *roles.Request {
	req := request1("")
	req.Valid = []roles.AttachmentID{}
	for _, v := range valid {
		req.Valid = append(req.Valid, roles.AttachmentID{ContainerID: v, IfName: "eth0"})
	}
	return req
}

func TestGC(t *testing.T) {
	b := newBed(t)
	ctx := context.Background()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "2001:db8::/64"}]]}`)
	other := request1("stale")
	other.Network = "other"
	b.add(t, a, other)
	for _, id := range []string{"valid", "busy", "recorded", "stale"} {
		b.add(t, a, request1(id))
	}
	b.add(t, a, requestFor("valid", "eth1"))
	lock, err := b.Store.LockAttachment(ctx, request1("busy").Key())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	err = b.Store.Update(ctx, func(tx *store.Tx) error {
		return tx.PutAttachment(&store.Attachment{Key: request1("recorded").Key()})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.GC(ctx, b.Host, gcRequest("valid")); err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t),
		"10.1.0.2 valid eth0", "10.1.0.3 busy eth0", "10.1.0.4 recorded eth0",
		"2001:db8::2 valid eth0", "2001:db8::3 busy eth0", "2001:db8::4 recorded eth0",
		"10.1.0.2 stale eth0", "2001:db8::2 stale eth0")
	for i := range 2*leasing.GCBatch + 10 {
		b.add(t, a, request1(fmt.Sprint("many", i)))
	}
	if err := a.GC(ctx, b.Host, gcRequest()); err != nil {
		t.Fatal(err)
	}
	if got := b.leases(t); len(got) != 4+2 {
		t.Errorf("left %v", got)
	}
}

func TestCheck(t *testing.T) {
	b := newBed(t)
	ctx := context.Background()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]}`)
	if err := a.Check(ctx, b.Host, checkRequest("one")); !errors.Is(err, roles.ErrCheck) {
		t.Errorf("without ADD: %v", err)
	}
	r, err := a.Add(ctx, b.Host, request1("one"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(prev *types100.Result) error {
		req := request1("one")
		req.PrevResult = prev
		return a.Check(ctx, b.Host, req)
	}
	if err := check(r); err != nil {
		t.Error(err)
	}
	if err := check(nil); !errors.Is(err, roles.ErrConf) {
		t.Errorf("without prevResult: %v", err)
	}
	changed := *r
	changed.IPs = append([]*types100.IPConfig{{Address: roles.IPNet(netip.MustParsePrefix("192.0.2.9/24"))}}, r.IPs...)
	if err := check(&changed); err != nil {
		t.Errorf("an address of another plugin: %v", err)
	}
	changed.IPs = []*types100.IPConfig{{Address: roles.IPNet(netip.MustParsePrefix("10.1.0.9/24"))}, r.IPs[1]}
	for _, inBytes := range []func(net.IP) net.IP{net.IP.To4, net.IP.To16} { // a parsed result has 16
		changed.IPs[0].Address.IP = inBytes(changed.IPs[0].Address.IP)
		err = check(&changed)
		if !errors.Is(err, roles.ErrCheck) || !strings.Contains(err.Error(), "address 10.1.0.9 of prevResult is not leased to") {
			t.Errorf("another container's address, %v: %v", []byte(changed.IPs[0].Address.IP), err)
		}
	}
	err = b.Store.Update(ctx, func(tx *store.Tx) error {
		p, err := tx.Pool(a.ID("net"))
		if err != nil {
			return err
		}
		return p.Release(ip("10.1.0.2"))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = check(r)
	if !errors.Is(err, roles.ErrCheck) || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "has no address of range set 0 (10.1.0.0/24)") {
		t.Errorf("a lease is gone: %v", err)
	}
}

func TestStatus(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "2001:db8::/64"}], [{"subnet": "10.1.0.0/30"}]]}`)
	status := func() error { return a.Status(context.Background(), b.Host, request1("")) }
	if err := status(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.Store.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("STATUS made a file: %v", err)
	}
	b.add(t, a, request1("one"))
	err := status()
	if !errors.Is(err, roles.ErrNotAvailable) || !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), "range set 1 (10.1.0.0/30): 1 addresses, 1 used") {
		t.Error(err)
	}
	a.Life.AnyDead = func(context.Context, *roles.Host, string) (bool, error) { return true, nil }
	if err := status(); err != nil {
		t.Errorf("an owner is dead: %v", err)
	}
	a.Life.AnyDead = func(context.Context, *roles.Host, string) (bool, error) { return false, errors.New("no links today") }
	if err := status(); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("liveness unknown: %v", err)
	}
	b.del(t, a, request1("one"))
	if err := status(); err != nil {
		t.Error(err)
	}
}

// TestFaultSweep: if any call of the store fails, a failed ADD leaves nothing, and the next DEL
// removes what a failed DEL leaves.
func TestFaultSweep(t *testing.T) {
	for n := 1; ; n++ {
		b := newBed(t)
		b.writeDir(t, "net", map[string]string{"10.1.0.2": "old\r\neth0"})
		o := storeOptions(t, b.dir, "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01")
		calls, failed := 0, ""
		o.Probe = func(op string) error {
			// A failed view or wait changes nothing, but counts as a call.
			calls++
			if calls == n && !strings.Contains(op, "committed") {
				failed = op
				return errInjected
			}
			return nil
		}
		sound := b.Store
		b.Store = store.New(o)
		a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]}`)
		_, addErr := a.Add(context.Background(), b.Host, request1("one"))
		if addErr == nil {
			addErr = a.Del(context.Background(), b.Host, request1("one"))
		}
		b.Store = sound
		if (addErr != nil) != (failed != "") || addErr != nil && !errors.Is(addErr, errInjected) {
			t.Fatalf("call %d (%s): %v", n, failed, addErr)
		}
		b.del(t, a, request1("one"))
		expect(t, b.files(t), "10.1.0.2 old eth0", "lock ")
		b.add(t, a, request1("one"))
		b.del(t, a, request1("one"))
		expect(t, b.leases(t), "10.1.0.2 old eth0")
		if calls < n {
			return
		}
	}
}

var errInjected = errors.New("injected")
