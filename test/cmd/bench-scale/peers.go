package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
)

// seconds is a measured duration.
type seconds = time.Duration

// peer is the k-th other node, from 0.
func peer(k int) overlay.Peer {
	n := k + 300 // behind those subnets that an allocator tries first
	return overlay.Peer{
		Name:    fmt.Sprintf("node-%05d", k),
		Subnet:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24),
		Gateway: netip.AddrFrom4([4]byte{172, byte(16 + n>>16), byte(n >> 8), byte(n)}),
		MAC:     mac(0, k),
	}
}

// mac returns the k-th node's MAC in a generation: a node that is made again has another one.
func mac(generation, k int) overlay.MAC {
	return overlay.MAC{0x0e, byte(generation), byte(k >> 24), byte(k >> 16), byte(k >> 8), byte(k)}
}

// device returns the tunnel, as the agent makes it.
func device() *overlay.VTEP {
	return &overlay.VTEP{
		Name: "flannel.1", VNI: 1, Port: 8472, Parent: "under0", Local: netip.MustParseAddr("172.16.0.1"), MAC: "0e:ff:00:00:00:01", MTU: 1450,
		Address: netip.MustParsePrefix("10.0.1.0/32"), Network: netip.MustParsePrefix("10.0.0.0/8"),
	}
}

// bare measures netops alone for this number of peers, without a registry.
func bare(ctx context.Context, n int, classic bool) (seconds, error) {
	o, err := overlay.Open(netops.New(netops.Options{}), overlay.Options{NoNexthops: classic})
	if err != nil {
		return 0, err
	}
	defer o.Close() //nolint:errcheck // it is only read
	spec := overlay.Spec{Device: device(), Prune: true}
	for k := range n {
		spec.Peers = append(spec.Peers, peer(k))
	}
	start := time.Now()
	r, err := o.Apply(ctx, spec)
	took := time.Since(start)
	if err == nil && r.Programmed != n {
		err = fmt.Errorf("%d of %d peers programmed", r.Programmed, n)
	}
	if err != nil {
		return 0, err
	}
	return took, o.Remove(ctx)
}

// floor measures iproute2 for the same objects: one process for addresses and routes, and one for forwarding entries.
func floor(ctx context.Context, dir string, n int) (seconds, error) {
	d := device()
	if err := command(ctx, "ip link add "+d.Name+" address "+d.MAC+" type vxlan id 1 dev under0 local 172.16.0.1 dstport 8472 nolearning", "ip link set "+d.Name+" up"); err != nil {
		return 0, err
	}
	defer command(ctx, "ip route flush proto 142", "ip nexthop flush proto 142", "ip link del "+d.Name) //nolint:errcheck // what is left shows in the next run
	var ip, bridge strings.Builder
	for k := range n {
		p := peer(k)
		first, id := p.Subnet.Addr(), k+1
		fmt.Fprintf(&ip, "neigh replace %s lladdr %s dev %s nud permanent\nnexthop replace id %d via %s dev %s onlink proto 142\nroute replace %s nhid %d proto 142\n",
			first, p.MAC, d.Name, id, first, d.Name, p.Subnet, id)
		fmt.Fprintf(&bridge, "fdb replace %s dev %s dst %s self permanent\n", p.MAC, d.Name, p.Gateway)
	}
	for name, content := range map[string]string{"ip": ip.String(), "bridge": bridge.String()} {
		if err := os.WriteFile(filepath.Join(dir, name+".batch"), []byte(content), 0o600); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	err := command(ctx, "bridge -batch "+filepath.Join(dir, "bridge.batch"), "ip -batch "+filepath.Join(dir, "ip.batch"))
	return time.Since(start), err
}

// command runs programs in order.
func command(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		f := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, f[0], f[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}
