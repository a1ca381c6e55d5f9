package cloudsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// fetch reads a simulator with a provider of the role cloud-ipam.
func fetch(t *testing.T, name string, s *Sim) (*metadata.Reply, error) {
	t.Helper()
	p, ok := metadata.Lookup(name)
	if !ok {
		t.Fatalf("the role cloud has no provider %q", name)
	}
	return p.Fetch(t.Context(), metadata.Query{URL: s.URL()})
}

// randomNode is a node that every cloud could have: up to four interfaces, each with an IPv4 subnet and perhaps an IPv6 subnet, in
// which the node has one address.
func randomNode(r *rand.Rand) []store.CloudNIC {
	nics := []store.CloudNIC{}
	network := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for i := range 1 + r.IntN(4) {
		n := store.CloudNIC{
			MAC: fmt.Sprintf("0a:1b:2c:%02x:4e:%02x", i, r.IntN(256)), ID: fmt.Sprintf("eni-%08x", r.Uint32()), Device: i, Primary: i == 0,
			MTU: 1280 + r.IntN(8000), Network: network, DNS: addrs("10.0.0.2"),
		}
		four := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i + 1), byte(r.IntN(4) * 64), 0}), 18+r.IntN(8))
		n.Subnets = append(n.Subnets, randomSubnet(r, four.Masked(), 28))
		if r.IntN(2) == 0 {
			six := netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x:%x::/64", i+1, r.IntN(1<<16)))
			n.Subnets = append(n.Subnets, randomSubnet(r, six, 80))
		}
		nics = append(nics, n)
	}
	return nics
}

// randomSubnet has its single addresses in its first quarter, and ranges from its middle on.
func randomSubnet(r *rand.Rand, p netip.Prefix, bits int) store.CloudSubnet {
	s := store.CloudSubnet{Prefix: p, Gateway: step(p.Addr(), 1+r.IntN(2))}
	a := step(p.Addr(), 3+r.IntN(5))
	s.Own = append(s.Own, a)
	for range r.IntN(12) {
		a = step(a, 1+r.IntN(2))
		s.Addresses = append(s.Addresses, a)
	}
	at := netip.PrefixFrom(stepBits(p.Addr(), p.Addr().BitLen()-p.Bits()-1), bits)
	for range r.IntN(3) {
		s.Ranges = append(s.Ranges, at)
		at = shift(shift(at))
	}
	return s
}

// knowledge says which parts of a node a cloud shows.
type knowledge struct {
	id, mtu, network, primary, gateway, ranges, device bool
	// addresses are shown for IPv4, addresses6 for IPv6; six means that IPv6 is shown at all.
	addresses, addresses6, six bool
	dns                        string
}

func known() map[string]knowledge {
	return map[string]knowledge{
		"azure":        {primary: true, addresses: true, addresses6: true, six: true, dns: "168.63.129.16"},
		"azure-imds":   {addresses: true, addresses6: true, six: true, dns: "168.63.129.16"},
		"aws":          {id: true, network: true, primary: true, ranges: true, addresses: true, addresses6: true, six: true},
		"gcp":          {mtu: true, primary: true, gateway: true, ranges: true, addresses: true, dns: "10.0.0.2"},
		"alibaba":      {id: true, network: true, primary: true, gateway: true, ranges: true, addresses: true, addresses6: true, six: true, dns: "10.0.0.2"},
		"tencent":      {primary: true, gateway: true, addresses: true},
		"oracle":       {primary: true, gateway: true, addresses6: true, six: true},
		"openstack":    {mtu: true, primary: true, gateway: true, addresses: true, addresses6: true, six: true, dns: "10.0.0.2"},
		"digitalocean": {primary: true, gateway: true, six: true, dns: "10.0.0.2"},
		"hetzner":      {network: true, gateway: true, addresses: true, device: true},
		"vultr":        {primary: true, gateway: true, addresses: true, addresses6: true, six: true},
	}
}

// of returns the node as the cloud shows it.
func (k *knowledge) of(name string, nics []store.CloudNIC) []store.CloudNIC {
	out := clone(nics)
	for i := range out {
		n := &out[i]
		n.Primary = n.Primary && k.primary
		if !k.id {
			n.ID = ""
		}
		if !k.mtu {
			n.MTU = 0
		}
		if k.device {
			n.Device++
		}
		n.DNS = nil
		if k.dns != "" {
			n.DNS = addrs(k.dns)
		}
		switch {
		case !k.network:
			n.Network = nil
		case name != "aws": // the others show a network of IPv4
			n.Network = n.Network[:1]
		}
		n.Subnets = slices.DeleteFunc(n.Subnets, func(s store.CloudSubnet) bool { return !k.six && s.Prefix.Addr().Is6() })
		for j := range n.Subnets {
			s := &n.Subnets[j]
			six := s.Prefix.Addr().Is6()
			if !k.gateway || name == "vultr" && six {
				s.Gateway = s.Prefix.Addr().Next()
			}
			if !k.ranges {
				s.Ranges = nil
			}
			if six && !k.addresses6 || !six && !k.addresses {
				s.Addresses = nil
			}
			s.Addresses = slices.DeleteFunc(s.Addresses, func(a netip.Addr) bool { return a == s.Gateway })
		}
	}
	return out
}

// TestRoundTrip: the role cloud-ipam reads from a simulated cloud what the cloud shows of a random node. The two share no code for
// that.
func TestRoundTrip(t *testing.T) {
	clustertest.Loopback(t)
	for name, k := range known() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				roundTrip(t, name, &k, seed)
			}
		})
	}
}

func FuzzRoundTrip(f *testing.F) {
	clustertest.Loopback(f)
	for i := range providers() {
		f.Add(uint64(i), i)
	}
	all := known()
	f.Fuzz(func(t *testing.T, seed uint64, which int) {
		list := providers()
		name := list[max(0, which)%len(list)].name
		k := all[name]
		roundTrip(t, name, &k, seed)
	})
}

func roundTrip(t *testing.T, name string, k *knowledge, seed uint64) {
	t.Helper()
	nics := randomNode(rand.New(rand.NewPCG(seed, 0)))
	s, err := Start(t.Context(), Options{Providers: []string{name}, Listen: []string{"127.0.0.1:0"}, NICs: nics})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := k.of(name, nics)
	r, err := fetch(t, name, s)
	addresses, ranges := size(want)
	if none := addresses+ranges == 0; (err != nil) != none || none && !errors.Is(err, metadata.ErrNoAddresses) {
		t.Fatalf("seed %d: %d addresses, %d ranges, %v", seed, addresses, ranges, err)
	}
	ignored := []string{}
	if !k.id {
		ignored = append(ignored, "ID") // a name of the cloud's that stands in for it
	}
	byPrefix := func(a, b store.CloudSubnet) bool { return a.Prefix.String() < b.Prefix.String() }
	if diff := gocmp.Diff(want, r.NICs, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }), gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.IgnoreFields(store.CloudNIC{}, ignored...), cmpopts.SortSlices(byPrefix), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("seed %d: (-shown +read):\n%s", seed, diff)
	}
	if len(r.Dropped) > 0 {
		t.Errorf("seed %d: dropped: %q", seed, r.Dropped)
	}
}

// TestFaultsRead: with every fault, the role cloud-ipam reports an error or reads addresses that the node has.
func TestFaultsRead(t *testing.T) {
	slow := []string{"hang", "slow-headers", "slow-body", "endless"}
	// With these faults there are more addresses, or addresses of other subnets.
	more := []string{"many", "same-subnet", "prefix-32", "unknown-mac", "mac-any"}
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			// If each address has its own mask, none is outside of its subnet.
			eachMasked := p.name == tencentName || p.name == openstackName
			s := start(t, Options{Providers: []string{p.name}, NICs: twoNICs()})
			good, err := fetch(t, p.name, s)
			if err != nil && !errors.Is(err, metadata.ErrNoAddresses) {
				t.Fatal(err)
			}
			for _, kind := range slices.Concat([]string{"401", "403", "404", "410", "429", "500", "503"}, kindsNamed()) {
				if slices.Contains(slow, kind) || kind == "many" && p.name == tencentName { // two requests for each address
					continue
				}
				do(t, s, "break", kind)
				r, err := fetch(t, p.name, s)
				do(t, s, "heal")
				switch {
				case err == nil:
					if extra := beyond(r.NICs, good.NICs); len(extra) > 0 && !slices.Contains(more, kind) && (kind != "outside" || !eachMasked) {
						t.Errorf("%s: read %v, which the node has not", kind, extra)
					}
				case !errors.Is(err, metadata.ErrUnavailable) && !errors.Is(err, metadata.ErrRefused) && !errors.Is(err, metadata.ErrNoAddresses) && !errors.Is(err, metadata.ErrInvalid):
					t.Errorf("%s: an error of no kind: %v", kind, err)
				}
			}
			again, err := fetch(t, p.name, s)
			if err != nil && !errors.Is(err, metadata.ErrNoAddresses) || len(beyond(again.NICs, good.NICs)) > 0 {
				t.Errorf("healed: %v", err)
			}
			for _, kind := range slow {
				do(t, s, "break", kind)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				provider, _ := metadata.Lookup(p.name)
				if _, err := provider.Fetch(ctx, metadata.Query{URL: s.URL()}); err == nil {
					t.Errorf("%s: it was read in no time", kind)
				}
				cancel()
				do(t, s, "heal")
			}
		})
	}
}

func kindsNamed() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// beyond returns the addresses of one node that the other does not have.
func beyond(some, all []store.CloudNIC) (extra []netip.Addr) {
	has := map[netip.Addr]bool{}
	for _, n := range all {
		for _, s := range n.Subnets {
			for _, a := range slices.Concat(s.Addresses, s.Own) {
				has[a] = true
			}
		}
	}
	for _, n := range some {
		for _, s := range n.Subnets {
			for _, a := range s.Addresses {
				if !has[a] {
					extra = append(extra, a)
				}
			}
		}
	}
	return slices.SortedFunc(slices.Values(extra), func(a, b netip.Addr) int { return cmp.Compare(a.String(), b.String()) })
}
