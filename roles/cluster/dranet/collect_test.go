package dranet

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// newHost returns a node without a kernel.
func newHost(t *testing.T) *roles.Host {
	t.Helper()
	dir := t.TempDir()
	return &roles.Host{
		Log: slog.New(slog.DiscardHandler), Now: time.Now, SinceBoot: store.SinceBoot,
		Store: store.New(store.Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute, Role: name}),
	}
}

// TestCollect: a lease is released when two complete lists in a row lacked its claim, and each was made after the lease. Leases of
// others stay.
func TestCollect(t *testing.T) {
	h := newHost(t)
	n := byte(0)
	lease := func(owner store.Key) {
		t.Helper()
		n++
		err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
			p, err := tx.Pool(store.PoolID{DataDir: store.RangeDir(""), Network: owner.Network})
			if err != nil {
				return err
			}
			return p.Reserve(store.Lease{Address: netip.AddrFrom4([4]byte{10, 0, 0, n}), Owner: owner, Time: time.Now()})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	device := func(claim string) { t.Helper(); lease(ranges.DeviceKey("lan", claim, "eth1")) }
	var exist []string
	var fault error
	during := func() {}
	var log bytes.Buffer
	h.Log = slog.New(slog.NewTextHandler(&log, nil))
	c := collector{host: h, list: func(context.Context) (map[string]bool, error) {
		during()
		all := map[string]bool{}
		for _, uid := range exist {
			all[uid] = true
		}
		return all, fault
	}}
	left := func(want ...string) {
		t.Helper()
		var got []string
		err := h.Store.View(t.Context(), func(tx *store.Tx) error {
			return tx.EachPool("", func(p *store.Pool) error {
				all, err := store.Collect(p.Leases())
				for _, l := range all {
					got = append(got, l.Owner.ContainerID)
				}
				return err
			})
		})
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, want %v, %v", got, want, err)
		}
	}
	lease(store.Key{Network: "lan", ContainerID: "container", IfName: "eth1"})
	device("a")
	device("b")
	exist = []string{"a"}
	c.collect(t.Context())
	left("a", "b", "container")

	exist, fault = nil, errors.New("refused")
	c.collect(t.Context())
	c.collect(t.Context())
	left("a", "b", "container")
	if n := bytes.Count(log.Bytes(), []byte("refused")); n != 1 {
		t.Errorf("one fault is logged %d times: %s", n, log.String())
	}

	// A claim and its lease are new while the claims are listed.
	exist, fault = []string{"a"}, nil
	during = func() { device("c"); during = func() {} }
	c.collect(t.Context())
	left("a", "c", "container")
	c.collect(t.Context())
	left("a", "c", "container")
	exist = []string{"a", "c"}
	c.collect(t.Context())
	exist = []string{"c"}
	c.collect(t.Context())
	left("a", "c", "container")
	exist = []string{"a", "c"} // no claim returns, but a list may lack one
	c.collect(t.Context())
	exist = nil
	c.collect(t.Context())
	left("a", "c", "container")
	c.collect(t.Context())
	left("container")
	during = func() { t.Error("claims are listed without a lease of a device") }
	c.collect(t.Context())
}

// FuzzCall: a request is refused or has names that can be keys, texts and parts of a log.
func FuzzCall(f *testing.F) {
	f.Add([]byte(`{"device":{"name":"eth1","mac_address":"02:00:00:00:00:01"},"claim_uid":"1-2","config":{"profile":"lan","interface":{"addresses":["10.0.0.1/8"]}}}`))
	f.Add([]byte(`{"device":{"name":"eth1"},"claim_uid":"1-2","config":null}`))
	f.Add([]byte(`{"claim_uid":"../x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := readCall(bytes.NewReader(raw))
		switch {
		case err != nil && !errors.Is(err, errRequest):
			t.Error(err)
		case err == nil && (!roles.IsName(c.ClaimUID) || !roles.IsName(c.Device.Name) || len(c.ClaimUID) > maxUID || len(c.Device.Name) > maxDevice || len(c.addresses) != len(c.Config.Interface.Addresses)):
			t.Errorf("%+v", c)
		}
	})
}
