package hostlocal

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// BenchmarkAllocate measures one ADD in process for a /16 that is full to different degrees. The
// time includes opening, locking, committing and closing the store, but not the DEL.
func BenchmarkAllocate(b *testing.B) {
	for name, used := range map[string]int{"full=0": 0, "full=50": 32766, "full=99.9": 65467} {
		b.Run(name, func(b *testing.B) {
			bd := newBed(b)
			a := bd.handlerFor(b, `{"subnet": "10.1.0.0/16"}`)
			bd.fill(b, a, used)
			bd.measureAdds(b, a, request1("bench"))
		})
	}
}

// BenchmarkMirror measures one ADD in process with and without the file in dataDir.
func BenchmarkMirror(b *testing.B) {
	for name, conf := range map[string]string{"on": `{"subnet": "10.1.0.0/16"}`, "off": `{"mirror": false, "subnet": "10.1.0.0/16"}`} {
		b.Run(name, func(b *testing.B) {
			bd := newBed(b)
			bd.measureAdds(b, bd.handlerFor(b, conf), request1("bench"))
		})
	}
}

// measureAdds measures ADD without the DEL after each.
func (b *bed) measureAdds(bench *testing.B, a *handler, req *roles.Request) {
	bench.Helper()
	ctx := context.Background()
	for bench.Loop() {
		if _, err := a.Add(ctx, b.Host, req); err != nil {
			bench.Fatal(err)
		}
		bench.StopTimer()
		if err := a.Del(ctx, b.Host, req); err != nil {
			bench.Fatal(err)
		}
		bench.StartTimer()
	}
}

// fill leases the first addresses of the pool.
func (b *bed) fill(tb testing.TB, a *handler, n int) {
	tb.Helper()
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		p, err := tx.Pool(a.ID("net"))
		if err != nil {
			return err
		}
		addr := ip("10.1.0.2")
		for i := range n {
			l := store.Lease{Address: addr, Owner: request1(fmt.Sprintf("%064d", i)).Key(), Time: time.Now()}
			if err := p.Reserve(l); err != nil {
				return err
			}
			addr = addr.Next()
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}
