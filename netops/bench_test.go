package netops_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// BenchmarkAdd measures the kernel operations of a bridge ADD. It plans and applies a veth
// on an existing bridge, an address, a route and two sysctls. Each iteration opens new
// sockets, as a new process does.
func BenchmarkAdd(b *testing.B) {
	ctx := context.Background()
	const ct, eth0 = netops.Container, "eth0"
	var shared, spec netops.Spec
	shared.Add(
		&netops.Link{In: netops.Host, Shared: true, Name: "bbr0", Kind: "bridge", Up: true},
		&netops.Addr{In: netops.Host, Shared: true, Link: "bbr0", Address: netip.MustParsePrefix("10.22.0.1/16")},
		&netops.Sysctl{In: netops.Host, Shared: true, Key: "net/ipv4/ip_forward", Value: "1"},
	)
	spec.Add(shared.Objects...)
	spec.Add(
		&netops.Link{
			In: netops.Host, Name: "vbench", Kind: "veth", MAC: "02:00:00:00:00:01", Up: true, Alias: testLabel, Master: "bbr0",
			Port: &netops.Port{}, Peer: &netops.Peer{In: ct, Name: eth0, MAC: "02:00:00:00:00:02"},
		},
		&netops.Sysctl{In: ct, Key: "net/ipv6/conf/eth0/accept_dad", Value: "0"},
		&netops.Sysctl{In: ct, Key: "net/ipv4/conf/eth0/arp_notify", Value: "1"},
		&netops.Addr{In: ct, Link: eth0, Address: netip.MustParsePrefix("10.22.0.2/16")},
		&netops.Link{In: ct, Name: eth0, Up: true},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.22.0.1")},
	)
	defer clean(b, shared)
	if err := newNet(b, nil).Ensure(ctx, shared, nil); err != nil {
		b.Fatal(err)
	}
	box := netopstest.New(b)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		n := netops.New(netops.Options{})
		ns, err := n.OpenNamespace(box.Path())
		if err != nil {
			b.Fatal(err)
		}
		if err := n.Ensure(ctx, spec, ns); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := n.Remove(ctx, spec, ns); err != nil {
			b.Fatal(err)
		}
		ns.Close()
		n.Close()
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(took[len(took)/10])/1e6, "p10-ms")
}
