package cloud

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// BenchmarkAllocate measures one ADD in process for pools that are full to different
// degrees. A pool has every second address of a subnet, so that it has no ranges. No
// request is sent to the cloud.
func BenchmarkAllocate(b *testing.B) {
	for _, c := range []struct{ pool, used int }{{250, 0}, {250, 249}, {10000, 0}, {10000, 9999}} {
		b.Run(fmt.Sprintf("pool=%d/used=%d", c.pool, c.used), func(b *testing.B) {
			bd := newBed(b)
			n := nic("*", true, "10.0.0.0/8")
			addr := netip.MustParseAddr("10.1.0.2")
			for range c.pool {
				n.Subnets[0].Addresses = append(n.Subnets[0].Addresses, addr)
				addr = addr.Next().Next()
			}
			bd.gives(b, n)
			a := bd.handlerFor(b, `"cooldown": 0`)
			bd.fill(b, n.Subnets[0].Addresses[:c.used])
			ctx := context.Background()
			for b.Loop() {
				if _, err := a.Add(ctx, bd.Host, request("bench")); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				bd.del(b, a, "bench")
				b.StartTimer()
			}
		})
	}
}

// BenchmarkPlan measures the plan that each ADD makes from the cloud's reply.
func BenchmarkPlan(b *testing.B) {
	for _, pool := range []int{250, 10000} {
		b.Run(fmt.Sprint("pool=", pool), func(b *testing.B) {
			n := nic("*", true, "10.0.0.0/8")
			addr := netip.MustParseAddr("10.1.0.2")
			for range pool {
				n.Subnets[0].Addresses = append(n.Subnets[0].Addresses, addr)
				addr = addr.Next().Next()
			}
			a, err := newHandler([]byte(`{"name": "net", "ipam": {"type": "cloud-ipam"}}`))
			if err != nil {
				b.Fatal(err)
			}
			var p *leasing.Plan
			for b.Loop() {
				p, _ = a.planOf(&store.CloudSource{Name: "x", NICs: []store.CloudNIC{n}}, nil)
			}
			_ = p
		})
	}
}

// fill leases addresses to other containers.
func (b *bed) fill(tb testing.TB, addrs []netip.Addr) {
	tb.Helper()
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{Network: "net", DataDir: store.CloudDataDir})
		if err != nil {
			return err
		}
		for i, a := range addrs {
			if err := p.Reserve(store.Lease{Address: a, Owner: request(fmt.Sprintf("%064d", i)).Key(), Time: b.Now()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}
