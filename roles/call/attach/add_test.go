package attach_test

import (
	"context"
	"errors"
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

func TestMain(m *testing.M) { rolestest.Main(m, table()) }

// ipam returns one address and counts releases.
type ipam struct {
	roles.Delegator
	released int
}

func (*ipam) OverLink(string) bool { return false }

func (*ipam) Moves(string, *roles.Request) bool { return false }

func (i *ipam) Clone() (roles.Delegator, func()) { return i, func() {} }

func (*ipam) Add(context.Context, string, *roles.Request) (*roles.Result, error) {
	address := net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}
	return &roles.Result{IPs: []*types100.IPConfig{{Address: address, Gateway: net.IPv4(10, 1, 0, 1).To4()}}}, nil
}

func (i *ipam) Del(context.Context, string, *roles.Request) error { i.released++; return nil }

// failing refuses the n-th write and all later ones, also those of an undo, while on is
// true.
type failing struct {
	n, seen int
	on      bool
}

var errRefused = errors.New("refused")

func (f *failing) Before(netops.Step) error {
	if f.seen++; f.on && f.seen >= f.n {
		return errRefused
	}
	return nil
}

func (*failing) After(netops.Step) {}

// TestFailedUndo: if a failed ADD cannot be undone, the address, which is in use, and the
// record stay. DEL removes both.
func TestFailedUndo(t *testing.T) {
	probe := &failing{n: 3, on: true}
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), CacheDirs: []string{t.TempDir()}, NetProbe: probe})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	given := &ipam{}
	h.Delegate = given
	role, _ := all.Table().Lookup("ptp")
	conf := []byte(`{"cniVersion":"1.1.0","name":"net","type":"ptp","ipam":{"type":"given"}}`)
	handler, err := role.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	ns := netopstest.New(t)
	req := &roles.Request{ContainerID: "c1", Netns: ns.Path(), IfName: "eth0", Network: "net", CNIVersion: "1.1.0", Conf: conf}
	if _, err := handler.Add(t.Context(), h, req); !errors.Is(err, errRefused) {
		t.Fatalf("ADD: %v", err)
	}
	if _, err := h.Net.Link(t.Context(), nil, attachment.HostLink(req.Key())); err != nil {
		t.Fatalf("the interface that cannot be removed: %v", err)
	}
	err = h.Store.View(t.Context(), func(tx *store.Tx) error { _, err := tx.Attachment(req.Key()); return err })
	if err != nil || given.released != 0 {
		t.Errorf("after ADD: record %v, address released %d times", err, given.released)
	}
	probe.on = false
	if err := handler.Del(t.Context(), h, req); err != nil || given.released != 1 {
		t.Errorf("DEL: %v, address released %d times", err, given.released)
	}
	if _, err := h.Net.Link(t.Context(), nil, attachment.HostLink(req.Key())); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("after DEL: %v", err)
	}
}
