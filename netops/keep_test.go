package netops_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/egress"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/netops/podfilter"
)

// keeper keeps many objects of the kernel as they are wanted.
type keeper struct {
	// former makes a state that differs from the wanted one, and wanted makes that one.
	former, wanted func(context.Context) error
	// shows are the commands that list the objects.
	shows []string
}

// state returns what the commands list, without numbers that may differ, in an order that does not depend on when an object was made.
func (k *keeper) state(t *testing.T) string {
	t.Helper()
	var all []string
	for _, show := range k.shows {
		out, err := exec.Command("sh", "-c", show).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", show, err, out)
		}
		text := regexp.MustCompile(`nhid \d+|(?m)^id \d+`).ReplaceAllString(string(out), "")
		if !strings.HasPrefix(show, "nft") {
			all = append(all, strings.Split(text, "\n")...)
			continue
		}
		for _, object := range regexp.MustCompile(`\n\t(?:chain|set|map) `).Split(text, -1) {
			all = append(all, strings.TrimRight(object, "}\t\n")) // of the object, and of the table behind the last one
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// failing is a context whose Err reports a cancellation once, after some calls.
type failing struct{ ending }

func (c failing) Err() error {
	err := c.ending.Err()
	if *c.left < -1 {
		return nil
	}
	return err
}

// TestKeepersFail makes each keeper of many objects fail once at each place that checks its context, between reads, before and after writes, on the
// way from one state to another. The failure is reported, and the next try makes exactly the wanted state.
func TestKeepersFail(t *testing.T) {
	ctx := context.Background()
	for name, make := range map[string]func(*testing.T) *keeper{
		"peers": peerKeeper, "policies": policyKeeper, "recorded elements": elementKeeper, "egress addresses": egressKeeper,
		"sources of tunnels": func(t *testing.T) *keeper { return filterKeeper(t) },
		"rules of tunnels":   func(t *testing.T) *keeper { return filterKeeper(t, netip.MustParsePrefix("172.16.0.0/12")) },
	} {
		t.Run(name, func(t *testing.T) {
			k := make(t)
			try := func(what string, f func(context.Context) error) {
				t.Helper()
				if err := f(ctx); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			try("former", k.former)
			former := k.state(t)
			try("wanted", k.wanted)
			want := k.state(t)
			if former == want {
				t.Fatalf("nothing changes:\n%s", want)
			}
			each := 16 // later ones are alike
			if testing.Short() {
				each = 2
			}
			failed, half := 0, 0
			for place := 0; ; place += 1 + place/each {
				try("former", k.former)
				left := place
				err := k.wanted(failing{ending{ctx, &left}})
				if left >= 0 {
					break
				}
				failed++
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Fatalf("place %d: %v", place, err)
				}
				now := k.state(t)
				if now != former && now != want {
					half++
				}
				if err == nil && now != want {
					t.Errorf("place %d: the failure is not reported", place)
				}
				try(fmt.Sprintf("wanted after place %d", place), k.wanted)
				if diff := cmp.Diff(want, k.state(t)); diff != "" {
					t.Fatalf("place %d, %v (-wanted +have):\n%s", place, err, diff)
				}
			}
			t.Logf("failed at %d places, %d times with a part of the change", failed, half)
		})
	}
}

func peerKeeper(t *testing.T) *keeper {
	nstest.IP(t, "link add under0 type veth peer name under1")
	t.Cleanup(func() { nstest.TryIP("link del under0") })
	nstest.IP(t, "addr add 192.168.50.1/24 dev under0")
	nstest.IP(t, "link set under0 up")
	nstest.IP(t, "link set under1 up")
	o, err := overlay.Open(netops.New(netops.Options{}), overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Remove(context.Background()); _ = o.Close() })
	spec := func(first, last int, mac byte) overlay.Spec {
		s := overlay.Spec{Prune: true, Device: &overlay.VTEP{
			Name: "flannel.1", VNI: 1, Port: 8472, Parent: "under0", Local: netip.MustParseAddr("192.168.50.1"), MAC: "02:00:00:00:01:01", MTU: 1450,
			Address: netip.MustParsePrefix("10.244.1.0/32"), Network: netip.MustParsePrefix("10.244.0.0/16"),
		}}
		for i := first; i <= last; i++ {
			p := overlay.Peer{Name: fmt.Sprint(i), MAC: overlay.MAC{2, 0, 0, 0, 2, byte(i)}, Gateway: netip.AddrFrom4([4]byte{192, 168, 50, byte(i)})}
			p.Subnet, p.Direct = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), i%5 == 0
			if i%3 == 0 {
				p.MAC[3] = mac
			}
			s.Peers = append(s.Peers, p)
		}
		return s
	}
	apply := func(s overlay.Spec) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := o.Apply(ctx, s)
			if err == nil && r.Programmed != len(s.Peers) {
				err = fmt.Errorf("%d of %d peers are programmed", r.Programmed, len(s.Peers))
			}
			return err
		}
	}
	return &keeper{apply(spec(10, 150, 7)), apply(spec(80, 240, 9)), []string{
		"ip route show proto 142", "ip nexthop show", "ip neigh show nud permanent dev flannel.1", "bridge fdb show dev flannel.1",
	}}
}

func filterKeeper(t *testing.T, more ...netip.Prefix) *keeper {
	f, err := overlay.OpenFilter(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Remove(context.Background()); _ = f.Close() })
	ensure := func(first, last byte, exceptions ...netip.Prefix) func(context.Context) error {
		w := overlay.NAT{
			Network: netip.MustParsePrefix("10.244.0.0/16"), Subnet: netip.MustParsePrefix("10.244.1.0/24"), Masquerade: true, Exceptions: exceptions,
			Tunnel: &overlay.TunnelFilter{Port: 8472, VNI: 1},
		}
		for i := first; i <= last; i++ {
			w.Tunnel.Sources = append(w.Tunnel.Sources, netip.AddrFrom4([4]byte{192, 168, 50, i}))
		}
		return func(ctx context.Context) error { return f.Ensure(ctx, []overlay.NAT{w}) }
	}
	return &keeper{ensure(10, 150), ensure(80, 240, more...), []string{"nft list table inet cnibox_overlay"}}
}

func policyKeeper(t *testing.T) *keeper {
	f, err := podfilter.Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Remove(context.Background()); _ = f.Close() })
	ensure := func(first, last int, ports ...uint16) func(context.Context) error {
		r := podfilter.NewRuleset()
		for i := first; i <= last; i++ {
			s := podfilter.NewSet(fmt.Sprintf("a_%d", i), podfilter.Addresses, false)
			for j := range first + 5 {
				s.Add(podfilter.Key(netip.AddrFrom4([4]byte{10, byte(i), 0, byte(j)}), 0))
			}
			var rules []podfilter.Rule
			for _, port := range ports {
				rules = append(rules, podfilter.Rule{Protocol: 6, First: port, Last: port, Peer: podfilter.Peer{Set: s.Name}, Verdict: "accept"})
			}
			c := &podfilter.Chain{Name: fmt.Sprintf("c_%d_%d", i, len(ports)), Rules: append(rules, podfilter.Rule{Verdict: podfilter.Denied})}
			r.Use([]*podfilter.Chain{c}, []*podfilter.Set{s})
			r.PutPod(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), podfilter.Pod{Label: fmt.Sprintf("cnibox:%d", i), Egress: c.Name, Ingress: podfilter.Deny}, false)
		}
		return func(ctx context.Context) error {
			f.Recheck()
			return errors.Join(f.Refresh(ctx), f.Ensure(ctx, r))
		}
	}
	return &keeper{ensure(1, 12, 80), ensure(7, 20, 80, 443), []string{"nft list table inet cnibox_policy"}}
}

func egressKeeper(t *testing.T) *keeper {
	nstest.IP(t, "link add hold0 type veth peer name hold1")
	t.Cleanup(func() { nstest.TryIP("link del hold0") })
	nstest.IP(t, "addr add 10.244.1.1/16 dev hold0")
	nstest.IP(t, "link set hold0 up")
	nstest.IP(t, "link set hold1 up")
	l, err := net.InterfaceByName("hold0")
	if err != nil {
		t.Fatal(err)
	}
	k, err := egress.Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Remove(context.Background()); _ = k.Close() })
	apply := func(first, last int, arrivals ...string) func(context.Context) error {
		s := egress.Spec{Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Arrivals: arrivals, Remote: map[netip.Addr]int{}}
		for i := first; i <= last; i++ {
			a := egress.Address{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Index: i, Held: i%2 == 0}
			if !a.Held {
				a.Via, a.Link = netip.AddrFrom4([4]byte{10, 244, 2, byte(i + first)}), l.Index
			} else {
				s.Remote[netip.AddrFrom4([4]byte{10, 244, 3, byte(i)})] = i
			}
			s.Addresses = append(s.Addresses, a)
			s.Pods = append(s.Pods, egress.Pod{Device: "hold0", MAC: fmt.Sprintf("02:00:00:00:01:%02x", i), Addr: netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), Index: i})
		}
		return func(ctx context.Context) error { return k.Apply(ctx, s) }
	}
	return &keeper{apply(1, 20, "hold0"), apply(8, 31, "hold0"), []string{"nft list table inet cnibox_egress", "ip rule show", "ip route show table all dev hold0; ip route show table all type unreachable"}}
}

func elementKeeper(t *testing.T) *keeper {
	var recorded []*netops.Element
	for i := range 8 {
		subnet := fmt.Sprintf("10.%d.0.0/16", i)
		recorded = append(recorded, &netops.Element{Shared: true, Set: "masq4", Key: []string{fmt.Sprintf("cni%d", i), subnet}, Label: "cnibox:shared"},
			&netops.Element{Set: "macguard_pairs", Key: []string{fmt.Sprintf("veth%d", i), fmt.Sprintf("02:00:00:00:00:%02x", i)}, Label: fmt.Sprintf("cnibox:%d", i)},
			&netops.Element{Set: "portmap4", Key: []string{"tcp", fmt.Sprint(8000 + i)}, Value: []string{fmt.Sprintf("10.%d.0.2", i), "80"}, Label: fmt.Sprintf("cnibox:%d", i)},
			&netops.Element{Set: "portmap_mark4", Key: []string{fmt.Sprintf("10.%d.0.2", i)}, Value: []string{fmt.Sprintf("jump portmap_bit%d", i%3)}, Label: fmt.Sprintf("cnibox:%d", i)})
	}
	n := netops.New(netops.Options{Restore: func(context.Context) ([]*netops.Element, error) { return recorded, nil }})
	t.Cleanup(func() { _ = n.Close() })
	restore := func(ctx context.Context) error {
		_, err := n.RestoreRules(ctx)
		return err
	}
	const lost = "delete table bridge cnibox; flush table inet cnibox; delete element inet cnibox portmap4 { tcp . 8003, tcp . 8005 }; flush set inet cnibox masq4"
	return &keeper{func(ctx context.Context) error {
		if err := restore(ctx); err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, "nft", lost).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, restore, []string{"nft list table inet cnibox", "nft list tables bridge; nft list table bridge cnibox || true"}}
}
