package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// stickyBed is a node whose clock the test sets.
type stickyBed struct {
	*bed
	clock *time.Time
}

func newStickyBed(tb testing.TB) *stickyBed {
	tb.Helper()
	b := &stickyBed{bed: newBedIn(tb, memoryDir(tb)), clock: new(time.Time)}
	*b.clock = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	b.Now = func() time.Time { return *b.clock }
	return b
}

// memoryDir returns a directory on tmpfs, where syncing takes no time, if there is one.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cnibox-test-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// handlerFor makes a handler from the members of the "ipam" object.
func (b *stickyBed) handlerFor(tb testing.TB, ipam string, more ...string) *handler {
	tb.Helper()
	return b.bed.handlerFor(tb, "{"+ipam+"}", more...)
}

func (b *stickyBed) pass(d time.Duration) { *b.clock = b.clock.Add(d) }

const twoSets = `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]`

// podRequest returns the request for a sandbox of a pod in the Kubernetes namespace default.
func podRequest(tb testing.TB, id, pod string) *roles.Request {
	tb.Helper()
	return withArgs(tb, request1(id), "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod+";K8S_POD_INFRA_CONTAINER_ID="+id)
}

// dead makes the sandboxes with these IDs certainly dead.
func (b *bed) dead(a *handler, ids ...string) {
	a.Life.ReapOne = func(ctx context.Context, h *roles.Host, key store.Key) (bool, error) {
		if !slices.Contains(ids, key.ContainerID) {
			return false, nil
		}
		return true, h.Store.Update(ctx, func(tx *store.Tx) error {
			_, err := tx.DeleteLeases(key)
			return err
		})
	}
}

// reservations lists "identity addresses stage" of every pool.
func (b *bed) reservations(tb testing.TB) []string {
	tb.Helper()
	var out []string
	err := b.Store.KeepView(context.Background(), func(keep *store.KeepTx) error {
		ids, err := keep.StickyPools("")
		if err != nil {
			return err
		}
		for _, id := range ids {
			p, err := keep.Sticky(id)
			if err != nil {
				return err
			}
			for r, err := range p.All() {
				if err != nil {
					return err
				}
				out = append(out, fmt.Sprintf("%s %v %s", r.Identity, r.Addresses, r.Stage(b.Now())))
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// TestStatefulSet: a pod that is deleted and created again with its name gets both addresses again,
// also if other pods were created meanwhile.
func TestStatefulSet(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	expect(t, b.add(t, a, podRequest(t, "a0", "web-0")), "10.1.0.2", "2001:db8::2")
	expect(t, b.add(t, a, podRequest(t, "a1", "web-1")), "10.1.0.3", "2001:db8::3")
	for i, id := range []string{"b", "c", "d"} {
		b.del(t, a, podRequest(t, fmt.Sprint(string(id[0]-1), 0), "web-0"))
		b.pass(299 * time.Second)
		expect(t, b.add(t, a, podRequest(t, fmt.Sprint("other", i), "job-"+id)), fmt.Sprint("10.1.0.", 4+i), fmt.Sprint("2001:db8::", 4+i))
		expect(t, b.add(t, a, podRequest(t, id+"0", "web-0")), "10.1.0.2", "2001:db8::2")
	}
	expect(t, b.reservations(t)[3:], "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] held", "pod:default/web-1/eth0 [10.1.0.3 2001:db8::3] held")
	other := podRequest(t, "ns", "x")
	other = withArgs(t, other, "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=web-0")
	expect(t, b.add(t, a, other), "10.1.0.7", "2001:db8::7")
	second := podRequest(t, "d0", "web-0")
	second.IfName = "net1"
	expect(t, b.add(t, a, second), "10.1.0.8", "2001:db8::8")
}

// TestNotSticky: without the key "sticky" keep.db is not created.
func TestNotSticky(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, twoSets)
	b.add(t, a, podRequest(t, "a", "web-0"))
	b.del(t, a, podRequest(t, "a", "web-0"))
	expect(t, b.add(t, a, podRequest(t, "b", "web-0")), "10.1.0.3", "2001:db8::3")
	if _, err := os.Stat(b.Store.KeepPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("keep.db: %v", err)
	}
}

func TestIdentities(t *testing.T) {
	cases := map[string]struct {
		key, more, args, want string
	}{
		"pod":                  {`"pod"`, "", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0", "pod:ns/web-0/eth0"},
		"pod, name alone":      {`"pod"`, "", "K8S_POD_NAME=web", "container:c1/eth0"},
		"pod, odd names":       {`"pod"`, "", "K8S_POD_NAMESPACE=a/b;K8S_POD_NAME=c%2F", "pod:a%2Fb/c%252F/eth0"},
		"podman":               {`"container-name"`, "", "IgnoreUnknown=1;K8S_POD_NAME=web", "name:web/eth0"},
		"nerdctl":              {`"container-name"`, "", "NERDCTL_CNI_DHCP_HOSTNAME=db", "name:db/eth0"},
		"no name":              {`"container-name"`, "", "", "container:c1/eth0"},
		"mac of CNI_ARGS":      {`"mac"`, "", "MAC=02:00:00:00:00:0A", "mac:02:00:00:00:00:0a"},
		"mac of runtimeConfig": {`"mac"`, `"args": {"cni": {"mac": "02:00:00:00:00:01"}}, "runtimeConfig": {"mac": "02-00-00-00-00-02"}`, "MAC=02:00:00:00:00:03", "mac:02:00:00:00:00:02"},
		"mac of args":          {`"mac"`, `"args": {"cni": {"mac": "02:00:00:00:00:01"}}`, "MAC=02:00:00:00:00:03", "mac:02:00:00:00:00:01"},
		"no mac":               {`"mac"`, "", "", "container:c1/eth0"},
		"none":                 {`"none"`, "", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0", "container:c1/eth0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newStickyBed(t)
			more := []string{}
			if c.more != "" {
				more = append(more, c.more)
			}
			a := b.handlerFor(t, `"subnet": "10.1.0.0/24", "sticky": {"key": `+c.key+`}`, more...)
			b.add(t, a, withArgs(t, request1("c1"), c.args))
			expect(t, b.reservations(t), c.want+" [10.1.0.2] held")
			b.del(t, a, request1("c1"))
			stage := "kept"
			if name == "none" {
				stage = "cooling"
			}
			expect(t, b.reservations(t), c.want+" [10.1.0.2] "+stage)
		})
	}
}

// TestExpiry: a pod gets an address whose reservation has expired again if no other pod has it. Other
// pods get the addresses in the order of expiry.
func TestExpiry(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/29", "sticky": {"ttl": 60, "mode": "strict"}`)
	for i := range 5 {
		b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
	}
	for _, i := range []int{3, 1, 4} {
		b.del(t, a, podRequest(t, fmt.Sprint("c", i), ""))
		b.pass(10 * time.Second)
	}
	err := b.addFails(t, a, podRequest(t, "x", "x"))
	if !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), "5 addresses, 2 used") || !strings.Contains(err.Error(), "3 kept for others, 0 cooling down") {
		t.Error(err)
	}
	if err := a.Status(context.Background(), b.Host, request1("")); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("STATUS: %v", err)
	}
	b.pass(32 * time.Second) // c3 62 s, c1 52 s, c4 42 s ago
	if err := a.Status(context.Background(), b.Host, request1("")); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	expect(t, b.add(t, a, podRequest(t, "x", "x")), "10.1.0.5")
	b.pass(time.Hour)
	expect(t, b.add(t, a, podRequest(t, "d4", "web-4")), "10.1.0.6")
	expect(t, b.add(t, a, podRequest(t, "y", "y")), "10.1.0.3")
	b.addFails(t, a, podRequest(t, "d1", "web-1"))
}

// TestNever: a reservation with ttl never does not expire.
func TestNever(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/29", "sticky": {"ttl": "never", "mode": "strict"}`)
	for i := range 5 {
		b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
		b.del(t, a, podRequest(t, fmt.Sprint("c", i), ""))
	}
	b.pass(50 * 365 * 24 * time.Hour)
	if err := b.addFails(t, a, podRequest(t, "x", "x")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
	expect(t, b.add(t, a, podRequest(t, "y", "web-3")), "10.1.0.5")
}

// TestExhaustedPrefers: a reserved address is given to another pod only if no other is left, in the
// order of expiry. A pod that loses one address of a reservation loses both families.
func TestExhaustedPrefers(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "2001:db8::/64"}]], "sticky": {}`)
	for i := range 5 {
		b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
	}
	for _, i := range []int{2, 0, 1} {
		b.del(t, a, podRequest(t, fmt.Sprint("c", i), ""))
		b.pass(time.Second)
	}
	if err := a.Status(context.Background(), b.Host, request1("")); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	expect(t, b.add(t, a, podRequest(t, "x", "x")), "10.1.0.4", "2001:db8::7")
	expect(t, b.add(t, a, podRequest(t, "d1", "web-1")), "10.1.0.3", "2001:db8::3")
	expect(t, b.add(t, a, podRequest(t, "d2", "web-2")), "10.1.0.2", "2001:db8::8")
	if err := b.addFails(t, a, podRequest(t, "y", "y")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
}

// TestCooldown: no other pod gets a released address for a while, also if it is not reserved.
func TestCooldown(t *testing.T) {
	for _, key := range []string{"none", "pod"} {
		b := newStickyBed(t)
		ttl := `"ttl": 0,`
		if key == "none" {
			ttl = ""
		}
		a := b.handlerFor(t, `"subnet": "10.1.0.0/30", "sticky": {`+ttl+` "key": "`+key+`", "cooldown": "10s", "mode": "strict"}`)
		b.add(t, a, podRequest(t, "a", "one"))
		b.del(t, a, podRequest(t, "a", "one"))
		b.pass(9 * time.Second)
		err := b.addFails(t, a, podRequest(t, "b", "two"))
		if !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), "0 kept for others, 1 cooling down") {
			t.Error(err)
		}
		b.pass(time.Second)
		expect(t, b.add(t, a, podRequest(t, "b", "two")), "10.1.0.2")
	}
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/30", "sticky": {"ttl": 0}`)
	b.add(t, a, podRequest(t, "a", "one"))
	b.del(t, a, podRequest(t, "a", "one"))
	expect(t, b.add(t, a, podRequest(t, "b", "two")), "10.1.0.2") // mode prefer, and no other is left
}

// TestOldSandboxLives: a living sandbox keeps its addresses, and its late DEL releases only those
// (whereabouts #75, #176, #624).
func TestOldSandboxLives(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	b.dead(a)
	b.add(t, a, podRequest(t, "old", "web-0"))
	expect(t, b.add(t, a, podRequest(t, "new", "web-0")), "10.1.0.3", "2001:db8::3")
	b.pass(time.Minute)
	b.del(t, a, podRequest(t, "old", "web-0"))
	expect(t, b.leases(t), "10.1.0.3 new eth0", "2001:db8::3 new eth0")
	expect(t, b.reservations(t), "container:old/eth0 [10.1.0.2 2001:db8::2] cooling", "pod:default/web-0/eth0 [10.1.0.3 2001:db8::3] held")
	b.del(t, a, podRequest(t, "old", "web-0"))
	b.del(t, a, podRequest(t, "new", "web-0"))
	b.del(t, a, podRequest(t, "old", "web-0"))
	expect(t, b.reservations(t), "container:old/eth0 [10.1.0.2 2001:db8::2] cooling", "pod:default/web-0/eth0 [10.1.0.3 2001:db8::3] kept")
	expect(t, b.add(t, a, podRequest(t, "newer", "web-0")), "10.1.0.3", "2001:db8::3")
}

func TestOldSandboxLivesStrict(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {"mode": "strict"}`)
	b.dead(a)
	b.add(t, a, podRequest(t, "old", "web-0"))
	err := b.addFails(t, a, podRequest(t, "new", "web-0"))
	if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `of "pod:default/web-0/eth0": taken by container "old" interface "eth0"`) {
		t.Error(err)
	}
	b.del(t, a, podRequest(t, "old", "web-0"))
	expect(t, b.add(t, a, podRequest(t, "new", "web-0")), "10.1.0.2", "2001:db8::2")
}

// TestOldSandboxDead: the new sandbox gets the addresses if the old one is certainly dead. The late
// DEL of the old one releases nothing.
func TestOldSandboxDead(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {"mode": "strict"}`)
	a.Life.ReapOne = leasing.NodeLiveness().ReapOne
	first, kill := child(t)
	second, _ := child(t)
	b.add(t, a, inNetns(podRequest(t, "old", "web-0"), first))
	if err := b.addFails(t, a, inNetns(podRequest(t, "new", "web-0"), second)); !errors.Is(err, store.ErrTaken) {
		t.Errorf("while it lives: %v", err)
	}
	kill()
	expect(t, b.add(t, a, inNetns(podRequest(t, "new", "web-0"), second)), "10.1.0.2", "2001:db8::2")
	b.del(t, a, podRequest(t, "old", "web-0"))
	expect(t, b.leases(t), "10.1.0.2 new eth0", "2001:db8::2 new eth0")
	expect(t, b.reservations(t), "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] held")
}

// TestReboot: node.db ends with the boot, keep.db does not. The pods get their addresses again, in any
// order. The ttl of a pod that does not return begins at the first ADD of the new boot.
func TestReboot(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/28"}], [{"subnet": "2001:db8::/64"}]], "sticky": {"mode": "strict"}`)
	const pods = 13
	want := map[int][]string{}
	for i := range pods {
		want[i] = b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
	}
	b.pass(24 * time.Hour)
	b.reboot(t)
	if err := a.Status(context.Background(), b.Host, request1("")); err != nil {
		t.Errorf("STATUS after the boot: %v", err)
	}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(pods) {
		if i == 5 {
			continue
		}
		b.pass(20 * time.Second)
		expect(t, b.add(t, a, podRequest(t, fmt.Sprint("d", i), fmt.Sprint("web-", i))), want[i]...)
	}
	b.pass(79 * time.Second) // 299 s after the first ADD
	b.addFails(t, a, podRequest(t, "x", "x"))
	b.pass(time.Second)
	expect(t, b.add(t, a, podRequest(t, "x", "x"))[:1], want[5][0])
}

// TestClock: after a jump of the clock living containers keep their addresses, and no reservation
// lasts longer than its ttl from the correction on.
func TestClock(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/29", "sticky": {"mode": "strict"}`)
	for i := range 5 {
		b.add(t, a, podRequest(t, fmt.Sprint("c", i), fmt.Sprint("web-", i)))
	}
	b.pass(1000 * time.Hour)
	b.addFails(t, a, podRequest(t, "x", "x"))
	b.del(t, a, podRequest(t, "c3", ""))
	b.pass(-2000 * time.Hour)
	b.addFails(t, a, podRequest(t, "x", "x")) // the recorded release is in the future
	b.pass(299 * time.Second)
	b.addFails(t, a, podRequest(t, "x", "x"))
	b.pass(time.Second)
	expect(t, b.add(t, a, podRequest(t, "x", "x")), "10.1.0.5")
	if n := len(b.leases(t)); n != 5 {
		t.Errorf("%d leases", n)
	}
}

// TestDisappeared: the ttl of a pod that was reaped, or lost with node.db, begins when that is
// noticed.
func TestDisappeared(t *testing.T) {
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/30", "sticky": {"mode": "strict"}`)
	b.add(t, a, podRequest(t, "c", "web-0"))
	b.reaper(a, "c")
	b.addFailsReaping(t, a, podRequest(t, "x", "x"))
	b.pass(299 * time.Second)
	b.addFailsReaping(t, a, podRequest(t, "x", "x"))
	b.pass(time.Second)
	expect(t, b.add(t, a, podRequest(t, "x", "x")), "10.1.0.2")
}

// addFailsReaping is addFails for an ADD that reaps dead containers.
func (b *bed) addFailsReaping(tb testing.TB, a *handler, req *roles.Request) {
	tb.Helper()
	if r, err := a.Add(context.Background(), b.Host, req); !errors.Is(err, roles.ErrExhausted) {
		tb.Fatalf("ADD: %v, %v", r, err)
	}
}
