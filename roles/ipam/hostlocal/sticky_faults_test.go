package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// TestStickyGC: GC releases addresses by container, so a pod's new sandbox keeps the addresses of the
// old one (spiderpool #2526). The released addresses stay reserved for their pod.
func TestStickyGC(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	b.dead(a, "old")
	b.add(t, a, podRequest(t, "old", "web-0"))
	b.add(t, a, podRequest(t, "gone", "web-1"))
	b.add(t, a, podRequest(t, "new", "web-0"))
	if err := a.GC(context.Background(), b.Host, gcRequest("new")); err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t), "10.1.0.2 new eth0", "2001:db8::2 new eth0")
	expect(t, b.reservations(t), "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] held", "pod:default/web-1/eth0 [10.1.0.3 2001:db8::3] kept")
}

// TestStickyConfChanges: a reserved address is allocated only if the configuration still has it. The
// reservation survives while the key "sticky" is removed.
func TestStickyConfChanges(t *testing.T) {
	b := newStickyBed(t)
	both := b.handlerFor(t, twoSets+`, "sticky": {}`)
	b.add(t, both, podRequest(t, "a", "web-0"))
	b.del(t, both, podRequest(t, "a", "web-0"))
	one := b.handlerFor(t, `"subnet": "10.1.0.0/24", "sticky": {}`)
	expect(t, b.add(t, one, podRequest(t, "b", "web-0")), "10.1.0.2")
	none := b.handlerFor(t, twoSets)
	b.del(t, none, podRequest(t, "b", "web-0"))
	expect(t, b.reservations(t), "pod:default/web-0/eth0 [10.1.0.2] kept")
	expect(t, b.add(t, both, podRequest(t, "c", "web-0")), "10.1.0.2", "2001:db8::3")
	b.del(t, both, podRequest(t, "c", "web-0"))
	excluded := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.2"]}], [{"subnet": "2001:db8::/64"}]], "sticky": {}`)
	expect(t, b.add(t, excluded, podRequest(t, "d", "web-0")), "10.1.0.3", "2001:db8::4")
	// Meanwhile a network without "sticky" allocates one.
	b.del(t, both, podRequest(t, "d", "web-0"))
	expect(t, b.add(t, none, withArgs(t, request1("plain"), "IP=10.1.0.3")), "10.1.0.3", "2001:db8::5")
	expect(t, b.add(t, both, podRequest(t, "e", "web-0")), "10.1.0.4", "2001:db8::6")
}

// TestDamagedKeep: if keep.db is damaged, ADD fails with the reason, and DEL still releases addresses.
func TestDamagedKeep(t *testing.T) {
	for name, damage := range map[string][]byte{"empty": nil, "garbage": []byte(strings.Repeat("x", 65536))} {
		t.Run(name, func(t *testing.T) {
			b := newStickyBed(t)
			a := b.handlerFor(t, twoSets+`, "sticky": {}`)
			b.add(t, a, podRequest(t, "a", "web-0"))
			b.add(t, a, podRequest(t, "b", "web-1"))
			if err := os.WriteFile(b.Store.KeepPath(), damage, 0o600); err != nil {
				t.Fatal(err)
			}
			err := b.addFails(t, a, podRequest(t, "c", "web-2"))
			if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "run 'cnibox state repair'") {
				t.Error(err)
			}
			b.del(t, a, podRequest(t, "a", "web-0"))
			expect(t, b.leases(t), "10.1.0.3 b eth0", "2001:db8::3 b eth0")
			if err := os.Remove(b.Store.KeepPath()); err != nil {
				t.Fatal(err)
			}
			expect(t, b.add(t, a, podRequest(t, "c", "web-1")), "10.1.0.4", "2001:db8::4") // b still has the first ones
			b.del(t, a, podRequest(t, "b", "web-1"))
		})
	}
}

// TestUnwritableKeep: DEL releases the addresses, and GC works, while reservations cannot be written.
// The addresses stay reserved for their pods.
func TestUnwritableKeep(t *testing.T) {
	b := newStickyBed(t)
	state := filepath.Dir(b.Store.KeepPath())
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	b.add(t, a, podRequest(t, "a", "web-0"))
	b.add(t, a, podRequest(t, "b", "web-1"))
	if err := unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	b.del(t, a, podRequest(t, "a", "web-0"))
	expect(t, b.leases(t), "10.1.0.3 b eth0", "2001:db8::3 b eth0")
	gc := gcRequest("b")
	if err := a.GC(t.Context(), b.Host, gc); err != nil {
		t.Errorf("GC: %v", err)
	}
	if err := b.addFails(t, a, podRequest(t, "c", "web-2")); !errors.Is(err, store.ErrUnwritable) {
		t.Errorf("ADD: %v", err)
	}
	if err := unix.Mount("", state, "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := a.GC(t.Context(), b.Host, gc); err != nil {
		t.Errorf("GC: %v", err)
	}
	expect(t, b.add(t, a, podRequest(t, "d", "web-2")), "10.1.0.4", "2001:db8::4")
	expect(t, b.add(t, a, podRequest(t, "e", "web-0")), "10.1.0.2", "2001:db8::2")
}

// TestThousandPods restarts a thousand pods in random order. Each gets its address again.
func TestThousandPods(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/22"}], [{"subnet": "2001:db8::/64"}]], "sticky": {"mode": "strict"}`)
	pods := 1000
	if testing.Short() {
		pods = 100
	}
	want := make([][]string, pods)
	for i := range pods {
		want[i] = b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
	}
	for i := range pods {
		b.del(t, a, podRequest(t, fmt.Sprint("c", i), ""))
	}
	for _, i := range rand.New(rand.NewPCG(2, 2)).Perm(pods) {
		expect(t, b.add(t, a, podRequest(t, fmt.Sprint("d", i), fmt.Sprint("web-", i))), want[i]...)
	}
}

// TestParallelIdentities runs 300 ADDs at once, with two for each identity.
func TestParallelIdentities(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/22"}], [{"subnet": "2001:db8::/64"}]], "sticky": {}`)
	b.dead(a)
	for round := range 2 {
		var mu sync.Mutex
		seen := map[string]string{}
		var wg sync.WaitGroup
		for i := range 300 {
			req := podRequest(t, fmt.Sprint("c", round, "-", i), fmt.Sprint("web-", i/2))
			wg.Go(func() {
				r, err := a.Add(context.Background(), b.Host, req)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, ip := range ipsOf(r) {
					if seen[ip] != "" {
						t.Errorf("%s was given to %s and %s", ip, seen[ip], req.ContainerID)
					}
					seen[ip] = req.ContainerID
				}
			})
		}
		wg.Wait()
		if leases := b.leases(t); len(leases) != 600 || len(seen) != 600 {
			t.Fatalf("%d leases, %d addresses", len(leases), len(seen))
		}
		for i := range 300 {
			wg.Go(func() { b.del(t, a, request1(fmt.Sprint("c", round, "-", i))) })
		}
		wg.Wait()
	}
	expect(t, b.leases(t))
}

// TestStickySweep: if any call of the store fails, or is the last one before a kill, every address
// still belongs to one pod, and the pod gets its address again.
func TestStickySweep(t *testing.T) {
	for n := 1; ; n++ {
		b := newStickyBed(t)
		sound := b.Store
		a := b.handlerFor(t, twoSets+`, "sticky": {}`)
		b.dead(a, "first")
		want := b.add(t, a, podRequest(t, "first", "web-0"))
		calls, failed := 0, false
		o := storeOptions(t, b.dir, "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01")
		o.Probe = func(op string) error {
			calls++
			if calls >= n && !strings.Contains(op, "committed") { // as if the process were killed here
				failed = true
				return errInjected
			}
			return nil
		}
		b.Store = store.New(o)
		ctx := context.Background()
		err := errors.Join(
			a.Del(ctx, b.Host, podRequest(t, "first", "web-0")),
			addOnly(a.Add(ctx, b.Host, podRequest(t, "second", "web-0"))),
			addOnly(a.Add(ctx, b.Host, podRequest(t, "third", "web-1"))),
			a.Del(ctx, b.Host, podRequest(t, "second", "web-0")),
		)
		b.Store = sound
		if (err != nil) != failed {
			t.Fatalf("call %d: failed %v, %v", n, failed, err)
		}
		for _, id := range []string{"first", "second", "third"} {
			b.del(t, a, podRequest(t, id, ""))
		}
		expect(t, b.leases(t))
		expect(t, b.add(t, a, podRequest(t, "fourth", "web-0")), want...)
		other := b.add(t, a, podRequest(t, "fifth", "web-2"))
		if other[0] == want[0] || other[1] == want[1] {
			t.Fatalf("call %d: %v twice", n, other)
		}
		if !failed {
			return
		}
	}
}

// TestStickyAddFails: if any single call of the store fails, the failed ADD leaves no lease.
func TestStickyAddFails(t *testing.T) {
	for n := 1; ; n++ {
		b := newStickyBed(t)
		sound := b.Store
		a := b.handlerFor(t, twoSets+`, "sticky": {}`)
		calls, failed := 0, false
		o := storeOptions(t, b.dir, "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01")
		o.Probe = func(op string) error {
			if calls++; calls == n && !strings.Contains(op, "committed") {
				failed = true
				return errInjected
			}
			return nil
		}
		b.Store = store.New(o)
		_, err := a.Add(context.Background(), b.Host, podRequest(t, "one", "web-0"))
		b.Store = sound
		if (err != nil) != failed {
			t.Fatalf("call %d: failed %v, %v", n, failed, err)
		}
		if left := b.leases(t); failed && len(left) > 0 {
			t.Errorf("call %d: left %v", n, left)
		}
		if calls < n {
			return
		}
	}
}

// TestPinned: an address that an operator reserved is not given to another pod, even if no other is
// free, and stays reserved for its pod while an old sandbox of the pod lives.
func TestPinned(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/29", "sticky": {}`)
	b.dead(a)
	pin := leasing.Pin{Pool: a.ID("net"), Addresses: []netip.Addr{ip("10.1.0.2")}, Identity: "pod:default/web-0/eth0"}
	if _, err := leasing.ReserveAddresses(context.Background(), b.Host, pin); err != nil {
		t.Fatal(err)
	}
	expect(t, b.add(t, a, podRequest(t, "x", "x")), "10.1.0.3")
	expect(t, b.add(t, a, podRequest(t, "old", "web-0")), "10.1.0.2")
	expect(t, b.add(t, a, podRequest(t, "new", "web-0")), "10.1.0.4")
	b.del(t, a, podRequest(t, "old", ""))
	b.del(t, a, podRequest(t, "new", ""))
	b.add(t, a, podRequest(t, "y", "y"))
	b.add(t, a, podRequest(t, "z", "z"))
	expect(t, b.add(t, a, podRequest(t, "u", "u")), "10.1.0.4") // cools down, but no other is free
	if err := b.addFails(t, a, podRequest(t, "v", "v")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
	expect(t, b.add(t, a, podRequest(t, "newer", "web-0")), "10.1.0.2")
}

func addOnly(_ *roles.Result, err error) error { return err }
