package agent

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// TestPeersGolden: the peers of a snapshot. Each archive holds the network's configuration, this
// node, all nodes, and the expected peers.
func TestPeersGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var config *cluster.Config
			var own cluster.Node
			snap := &cluster.Snapshot{Faults: map[string]error{}}
			want := -1
			for i, f := range ar.Files {
				switch f.Name {
				case "net-conf.json":
					config, _, err = cluster.ParseConfig(f.Data)
				case "own.json":
					err = json.Unmarshal(f.Data, &own)
				case "nodes.json":
					err = json.Unmarshal(f.Data, &snap.Nodes)
				case "faults.txt":
					for line := range strings.Lines(string(f.Data)) {
						name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
						snap.Faults[name] = errors.New(reason)
					}
				case "peers":
					want = i
				}
				if err != nil {
					t.Fatalf("%s: %v", f.Name, err)
				}
			}
			got := printPeers(choosePeers(snap, config, &own, &verdicts{}))
			if flag.Lookup("update").Value.String() == "true" { // rolestest defines the flag
				ar.Files[want].Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(ar), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(ar.Files[want].Data) {
				t.Errorf("got\n%s\nwant\n%s", got, ar.Files[want].Data)
			}
		})
	}
}

func printPeers(p *peers) string {
	var b strings.Builder
	for _, list := range [][]overlay.Peer{p.v4, p.v6} {
		for _, o := range list {
			fmt.Fprintf(&b, "%s: %s via %s", o.Name, o.Subnet, o.Gateway)
			if o.MAC != (overlay.MAC{}) {
				fmt.Fprintf(&b, " vtep %s", o.MAC)
			}
			if o.Key != "" {
				fmt.Fprintf(&b, " port %d key %s", o.Port, o.Key)
			}
			if o.OtherSubnet.IsValid() {
				fmt.Fprintf(&b, " with %s", o.OtherSubnet)
			}
			if o.Direct {
				b.WriteString(" direct")
			}
			b.WriteByte('\n')
		}
	}
	for _, l := range p.left {
		fmt.Fprintf(&b, "%s left out: %s\n", l.Name, l.Reason)
	}
	if p.conflict != nil {
		fmt.Fprintf(&b, "conflict: %v\n", p.conflict)
	}
	return b.String()
}

// clusterOf returns the records of n nodes.
func clusterOf(n int) *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for i := range n {
		s.Nodes = append(s.Nodes, &cluster.Node{
			Name: fmt.Sprintf("node-%05d", i), PublicIP: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), BackendType: "vxlan",
			PodCIDRs:    []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
			BackendData: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255),
		})
	}
	return s
}

// TestPeersAgain: the verdicts on former snapshots do not change the result.
func TestPeersAgain(t *testing.T) {
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.0.0.0/8"}`))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	snap, own, known := clusterOf(12), clusterOf(1).Nodes[0], &verdicts{}
	for i := range 2000 {
		next := &cluster.Snapshot{Nodes: slices.Clone(snap.Nodes)}
		at := r.IntN(len(next.Nodes))
		n := *next.Nodes[at]
		next.Nodes[at] = &n
		switch r.IntN(6) {
		case 0, 1:
			n.BackendData = fmt.Appendf(nil, `{"VNI":%d,"VtepMAC":"02:00:00:00:00:%02x"}`, 1+r.IntN(2), r.IntN(8))
		case 2, 3:
			n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(16)), 0}), 22+r.IntN(3)).Masked()}
		case 4:
			n.PublicIP = netip.AddrFrom4([4]byte{172, 16, 1, byte(r.IntN(3))})
		case 5:
			if next.Nodes = slices.Delete(next.Nodes, at, at+1); len(next.Nodes) < 8 {
				next.Nodes = clusterOf(12).Nodes
			}
		}
		got, want := printPeers(choosePeers(next, config, own, known)), printPeers(choosePeers(next, config, own, &verdicts{}))
		if got != want {
			t.Fatalf("change %d:\n%s\nwithout a past:\n%s", i, got, want)
		}
		snap = next
	}
}

// BenchmarkPeers: one of 10,000 nodes changes.
func BenchmarkPeers(b *testing.B) {
	snap := clusterOf(10000)
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.0.0.0/8"}`))
	if err != nil {
		b.Fatal(err)
	}
	known := &verdicts{}
	for b.Loop() {
		if p := choosePeers(snap, config, snap.Nodes[7], known); len(p.v4) != 9999 {
			b.Fatal(len(p.v4), p.left)
		}
	}
}

// FuzzPeers: for all records, no peer's subnet overlaps another peer's or this node's, and every
// subnet is within the network.
func FuzzPeers(f *testing.F) {
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}`))
	if err != nil {
		f.Fatal(err)
	}
	own := cluster.Node{
		Name: "m", PublicIP: netip.MustParseAddr("192.0.2.1"), PublicIPv6: netip.MustParseAddr("2001:db8::1"), BackendType: "vxlan",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")},
	}
	f.Add([]byte(`[{"name":"a","publicIP":"192.0.2.2","podCIDRs":["10.0.0.0/17"],"backendType":"vxlan","backendData":{"VtepMAC":"02:00:00:00:00:01"}}]`))
	f.Add([]byte(`[{"name":"a","publicIPv6":"2001:db8::2","podCIDRs":["fd00::/64"],"backendType":"vxlan","backendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}},{"name":"m"}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var nodes []*cluster.Node
		if json.Unmarshal(raw, &nodes) != nil || slices.Contains(nodes, nil) {
			return
		}
		p := choosePeers(&cluster.Snapshot{Nodes: nodes}, config, &own, &verdicts{})
		for _, list := range [][]overlay.Peer{p.v4, p.v6} {
			for i, a := range list {
				if !config.Network.Contains(a.Subnet.Addr()) && !config.IPv6Network.Contains(a.Subnet.Addr()) || a.Subnet.Overlaps(own.PodCIDRs[0]) || a.Subnet.Overlaps(own.PodCIDRs[1]) {
					t.Fatalf("%+v", a)
				}
				for _, b := range list[i+1:] {
					if a.Subnet.Overlaps(b.Subnet) {
						t.Fatalf("%+v and %+v", a, b)
					}
				}
			}
		}
	})
}
