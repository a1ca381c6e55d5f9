package routed

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

const (
	mac0, mac1 = "02:00:00:00:0a:00", "02:00:00:00:0a:01"
	source     = "aws http://169.254.169.254"
)

// nics are the node's NICs as the cloud reports them.
func nics(change func(first, second *store.CloudNIC)) []store.CloudNIC {
	prefix := netip.MustParsePrefix
	first := store.CloudNIC{MAC: mac0, Primary: true, Network: []netip.Prefix{prefix("10.0.0.0/16"), prefix("fd00:10::/56")}, Subnets: []store.CloudSubnet{{
		Prefix: prefix("10.0.0.0/20"), Gateway: netip.MustParseAddr("10.0.0.1"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.23")},
	}, {
		Prefix: prefix("fd00:10::/64"), Gateway: netip.MustParseAddr("fd00:10::1"), Addresses: []netip.Addr{netip.MustParseAddr("fd00:10::23")},
	}}}
	second := store.CloudNIC{MAC: mac1, Device: 1, Network: first.Network, Subnets: []store.CloudSubnet{{
		Prefix: prefix("10.0.16.0/20"), Gateway: netip.MustParseAddr("10.0.16.1"), Ranges: []netip.Prefix{prefix("10.0.17.32/28")},
	}}}
	if change != nil {
		change(&first, &second)
	}
	return []store.CloudNIC{first, second}
}

// alone removes the second NIC's addresses for pods.
func alone(_, second *store.CloudNIC) { second.Subnets = nil }

// host is a node with its own state.
func host(t *testing.T) *roles.Host {
	t.Helper()
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), Role: "routed", Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return h
}

// ip runs iproute2 on the node.
func ip(t *testing.T, lines ...string) {
	t.Helper()
	for _, args := range lines {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
}

// addLinks creates the node's NICs. The first has an address and the default
// routes.
func addLinks(t *testing.T) {
	t.Helper()
	ip(t, "link add obs0 address "+mac0+" mtu 9001 type veth peer name far0", "link add obs1 address "+mac1+" mtu 9001 type veth peer name far1")
	t.Cleanup(func() { ip(t, "link del obs0", "link del obs1") })
	ip(t, "link set far0 up", "link set obs0 up", "addr add 10.0.0.4/20 dev obs0", "route add default via 10.0.0.1 dev obs0",
		"addr add fd00:10::4/64 dev obs0 nodad", "route add default via fd00:10::1 dev obs0")
}

// set sets a sysctl for the test.
func set(t *testing.T, key, value string) {
	t.Helper()
	path := "/proc/sys/net/" + key
	old, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(path, old, 0) })
}

// TestObserveCloud reads the NIC of an address, and the sysctls that must be
// changed, from the store and the kernel.
func TestObserveCloud(t *testing.T) {
	network := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	first := addressNIC{Address: netip.MustParseAddr("10.0.1.23"), Link: "obs0", Gateway: netip.MustParseAddr("10.0.0.1"), Network: network}
	second := addressNIC{Address: netip.MustParseAddr("10.0.17.33"), Link: "obs1", Device: 1, Gateway: netip.MustParseAddr("10.0.16.1"), Network: network}
	six := addressNIC{
		Address: netip.MustParseAddr("fd00:10::23"), Link: "obs0", Gateway: netip.MustParseAddr("fd00:10::1"),
		Network: []netip.Prefix{netip.MustParsePrefix("fd00:10::/56")},
	}
	for _, c := range []struct {
		name   string
		nics   []store.CloudNIC
		nic    string
		addrs  []string
		node   func(*testing.T)
		want   observed
		failed error
	}{
		{name: "one NIC in use", nics: nics(alone), nic: mac0, addrs: []string{"10.0.1.23"}, want: observed{MTU: 9001, NICs: []addressNIC{first}}},
		{
			name: "first of two", nics: nics(nil), nic: mac0, addrs: []string{"10.0.1.23"},
			node: func(t *testing.T) { set(t, "ipv4/conf/obs0/rp_filter", "0"); set(t, "ipv4/conf/all/rp_filter", "0") },
			want: observed{MTU: 9001, Uplink: "obs0", NICs: []addressNIC{first}},
		},
		{
			name: "second of two, strict", nics: nics(nil), nic: mac1, addrs: []string{"10.0.17.33"},
			node: func(t *testing.T) { set(t, "ipv4/conf/obs0/rp_filter", "0"); set(t, "ipv4/conf/all/rp_filter", "1") },
			want: observed{MTU: 9001, Uplink: "obs0", StrictRPFilter: true, NICs: []addressNIC{second}},
		},
		{
			name: "loose", nics: nics(nil), nic: mac1, addrs: []string{"10.0.17.33"},
			node: func(t *testing.T) { set(t, "ipv4/conf/obs0/rp_filter", "1"); set(t, "ipv4/conf/all/rp_filter", "2") },
			want: observed{MTU: 9001, Uplink: "obs0", NICs: []addressNIC{second}},
		},
		{
			name: "dual stack begins to forward", nics: nics(alone), nic: mac0, addrs: []string{"10.0.1.23", "fd00:10::23"},
			node: func(t *testing.T) { set(t, "ipv6/conf/all/forwarding", "0"); set(t, "ipv6/conf/obs0/accept_ra", "1") },
			want: observed{MTU: 9001, NICs: []addressNIC{first, six}, RALinks: []string{"obs0"}},
		},
		{
			name: "dual stack forwards already", nics: nics(alone), nic: mac0, addrs: []string{"fd00:10::23"},
			node: func(t *testing.T) { set(t, "ipv6/conf/all/forwarding", "1"); set(t, "ipv6/conf/obs0/accept_ra", "1") },
			want: observed{MTU: 9001, NICs: []addressNIC{six}},
		},
		{
			name: "MTU of the cloud's", nics: nics(func(first, second *store.CloudNIC) { alone(first, second); first.MTU = 1460 }),
			nic: mac0, addrs: []string{"10.0.1.23"}, want: observed{MTU: 1460, NICs: []addressNIC{first}},
		},
		{
			name: "bridge that took the NIC over", nics: nics(nil), nic: mac1, addrs: []string{"10.0.17.33"},
			node: func(t *testing.T) {
				ip(t, "link add obsbr address "+mac0+" type bridge", "link set obs0 master obsbr")
				t.Cleanup(func() { ip(t, "link del obsbr") })
				set(t, "ipv4/conf/all/rp_filter", "0")
			},
			want: observed{MTU: 9001, Uplink: "obsbr", NICs: []addressNIC{second}},
		},
		{
			name: "no NIC of its own", nics: nics(func(first, second *store.CloudNIC) { alone(first, second); first.MAC = "*" }),
			nic: "*", addrs: []string{"10.0.1.23"}, want: observed{MTU: 9001, NICs: []addressNIC{first}},
		},
		{
			name: "withdrawn", nics: nics(nil), nic: "02:00:00:00:0a:99", addrs: []string{"10.0.1.99"}, want: observed{MTU: 9001},
		},
		{
			name: "NIC that is not there yet", nics: nics(func(_, second *store.CloudNIC) { second.MAC = "02:00:00:00:0a:02" }),
			nic: "02:00:00:00:0a:02", addrs: []string{"10.0.17.33"}, failed: roles.ErrTryAgain,
		},
		{
			name: "no gateway", nics: nics(func(_, second *store.CloudNIC) { second.Subnets[0].Gateway = netip.Addr{} }),
			nic: mac1, addrs: []string{"10.0.17.33"}, failed: roles.ErrNotAvailable,
		},
		{
			name: "one number twice", nics: append(nics(nil), store.CloudNIC{MAC: "02:00:00:00:0a:02", Device: 1}),
			nic: mac1, addrs: []string{"10.0.17.33"}, failed: roles.ErrNotAvailable,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			addLinks(t)
			if c.node != nil {
				c.node(t)
			}
			h := host(t)
			in := &attach.Input{Key: store.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}, IPAM: &roles.Result{}}
			lease(t, h, in, c.nics, c.nic, c.addrs)
			r, err := rolestest.Read[*role](Role(), []byte(with("")))
			if err != nil {
				t.Fatal(err)
			}
			err = r.Observe(t.Context(), h, in, nil)
			if !errors.Is(err, c.failed) {
				t.Fatalf("error %v, want %v", err, c.failed)
			}
			if c.failed != nil {
				return
			}
			same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			samePrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(&c.want, in.Observed, same, samePrefix); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
}

// lease stores the leases and the source of a cloud's IPAM plugin, and sets its result.
func lease(t *testing.T, h *roles.Host, in *attach.Input, nics []store.CloudNIC, nic string, addrs []string) {
	t.Helper()
	err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
		if err := tx.PutCloudSource(&store.CloudSource{Name: source, NICs: nics, Fetched: time.Now()}); err != nil {
			return err
		}
		pool, err := tx.Pool(store.PoolID{DataDir: "cloud", Network: in.Key.Network})
		if err != nil {
			return err
		}
		for i, text := range addrs {
			a := netip.MustParseAddr(text)
			if err := pool.Reserve(store.Lease{Address: a, Owner: in.Key, Set: i, Source: source, NIC: nic, Time: time.Now()}); err != nil {
				return err
			}
			in.IPAM.IPs = append(in.IPAM.IPs, &types100.IPConfig{Address: roles.IPNet(netip.PrefixFrom(a, a.BitLen()-12))})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestObserveUplinks reads the interface of the default route and the
// configured uplinks.
func TestObserveUplinks(t *testing.T) {
	const conf = `{"ipam":{"type":"host-local"},"uplinks":[{"link":"obs1","subnets":["10.0.16.0/20"],"gateways":["10.0.16.1"]}]}`
	r, err := rolestest.Read[*role](Role(), []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	in := &attach.Input{IPAM: &roles.Result{}}
	for _, text := range []string{"10.0.17.33/20", "10.0.1.23/20"} {
		in.IPAM.IPs = append(in.IPAM.IPs, &types100.IPConfig{Address: roles.IPNet(netip.MustParsePrefix(text))})
	}
	h := host(t)
	t.Run("without a default route", func(t *testing.T) {
		if err := r.Observe(t.Context(), h, in, nil); err == nil {
			t.Error("want an error")
		}
	})
	addLinks(t)
	ip(t, "link set obs1 mtu 1500")
	if err := r.Observe(t.Context(), h, in, nil); err != nil {
		t.Fatal(err)
	}
	o := in.Observed.(*observed)
	links := []string{o.nicOf(netip.MustParseAddr("10.0.17.33")).Link, o.nicOf(netip.MustParseAddr("10.0.1.23")).Link}
	if o.Uplink != "obs0" || o.MTU != 1500 || !slices.Equal(links, []string{"obs1", "obs0"}) {
		t.Errorf("observed %+v", o)
	}
	if err := r.Status(t.Context(), h); err != nil {
		t.Error(err)
	}
	ip(t, "link set obs1 down", "link set obs1 name obs9")
	if err := r.Status(t.Context(), h); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("status without the uplink: %v", err)
	}
	ip(t, "link set obs9 name obs1")
}
