package hostlocal

import (
	"context"
	"fmt"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// BenchmarkSticky measures one ADD in process of a restarted pod, for a /16 with different numbers of
// reservations. Compare it with BenchmarkAllocate. The time includes syncing the disk, but not the DEL.
func BenchmarkSticky(b *testing.B) {
	for _, reserved := range []int{0, 1000, 60000} {
		b.Run(fmt.Sprint("reserved=", reserved), func(b *testing.B) {
			bd := newStickyBed(b)
			a := bd.handlerFor(b, `"subnet": "10.1.0.0/16", "sticky": {}`)
			bd.keepMany(b, a, reserved)
			bd.measureAdds(b, a, podRequest(b, "bench", "web-0"))
		})
	}
}

// keepMany makes reservations of the first addresses.
func (b *stickyBed) keepMany(tb testing.TB, a *handler, n int) {
	tb.Helper()
	next := ip("10.1.0.2")
	for done := 0; done < n; done += 4000 {
		err := b.Store.KeepUpdate(context.Background(), func(keep *store.KeepTx) error {
			p, err := keep.Sticky(a.ID("net"))
			if err != nil {
				return err
			}
			for i := done; i < min(n, done+4000); i++ {
				r := &store.Reservation{
					Identity: fmt.Sprint("pod:default/kept-", i, "/eth0"), Holder: request1(fmt.Sprint("k", i)).Key(),
					TTL: 300, Cooldown: 30, Created: b.Now(), Used: b.Now(), Released: b.Now(),
				}
				r.Addresses = append(r.Addresses, next)
				next = next.Next()
				if err := p.Put(r); err != nil {
					return err
				}
			}
			return p.SetBoot(b.Store.BootID())
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}
