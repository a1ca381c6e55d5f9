package egress

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/egress"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// world returns the facts of node a with a pod of each of two namespaces, and peers b and c.
func world() *facts {
	allowed := prefixes("203.0.113.0/28", "2001:db8::/124")
	peer := func(n int) Peer {
		return Peer{
			Hops:    [2]Hop{{addr(fmt.Sprintf("10.244.%d.0", n)), 7}, {addr(fmt.Sprintf("fd00:%d::", n)), 8}},
			Subnets: [2]netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n))},
		}
	}
	return &facts{
		node: "a",
		View: View{
			Networks: prefixes("10.244.0.0/16", "fd00::/16"), Nodes: []netip.Addr{addr("192.0.2.1"), addr("203.0.113.1")},
			Peers: map[string]Peer{"b": peer(2), "c": peer(3)}, Tunnels: []string{"flannel.1"}, Arrivals: []string{"flannel.1"},
		},
		requests: map[string]Request{"team": parseRequest("203.0.113.7, 2001:db8::7", allowed), "four": parseRequest("203.0.113.8", allowed)},
		holders:  map[netip.Addr]string{},
		pods: []localPod{
			{"team", "p", "cni0", "02:00:00:00:00:01", []netip.Addr{addr("10.244.1.2"), addr("fd00:1::2")}},
			{"four", "q", "cni0", "02:00:00:00:00:02", []netip.Addr{addr("10.244.1.3"), addr("fd00:1::3")}},
			{"none", "r", "cni0", "02:00:00:00:00:03", []netip.Addr{addr("10.244.1.4")}},
		},
		held: map[netip.Addr]bool{},
	}
}

// show returns the part of a decision that the facts of a case change.
func show(d *decision) string {
	var lines []string
	of := map[int]string{0: "nothing"}
	for _, a := range d.spec.Addresses {
		of[a.Index] = a.Addr.String()
		switch {
		case a.Held:
			lines = append(lines, fmt.Sprintf("%s held", a.Addr))
		case a.Via.IsValid():
			lines = append(lines, fmt.Sprintf("%s via %s on %d", a.Addr, a.Via, a.Link))
		default:
			lines = append(lines, fmt.Sprintf("%s nowhere", a.Addr))
		}
	}
	for _, p := range d.spec.Pods {
		lines = append(lines, fmt.Sprintf("%s %s has %s", p.Device, p.Addr, of[p.Index]))
	}
	for a, i := range d.spec.Remote {
		lines = append(lines, fmt.Sprintf("remote %s has %s", a, of[i]))
	}
	for a, ns := range d.publish {
		lines = append(lines, fmt.Sprintf("publish %s of %s", a, ns))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestDecide(t *testing.T) {
	pods := "\ncni0 10.244.1.2 has 203.0.113.7\ncni0 10.244.1.3 has 203.0.113.8\ncni0 fd00:1::2 has 2001:db8::7\npublish 10.244.1.2 of team\npublish 10.244.1.3 of four\npublish fd00:1::2 of team"
	for _, c := range []struct {
		name   string
		change func(f *facts)
		want   string
		fault  string
	}{
		{"no holder", func(*facts) {}, "2001:db8::7 nowhere\n203.0.113.7 nowhere\n203.0.113.8 nowhere" + pods, ""},
		{"other nodes hold", func(f *facts) {
			f.holders = map[netip.Addr]string{addr("203.0.113.7"): "b", addr("2001:db8::7"): "c", addr("203.0.113.8"): "gone"}
		}, "2001:db8::7 via fd00:3:: on 8\n203.0.113.7 via 10.244.2.0 on 7\n203.0.113.8 nowhere" + pods, ""},
		{"this node was the holder", func(f *facts) { f.holders[addr("203.0.113.7")] = "a" }, "2001:db8::7 nowhere\n203.0.113.7 nowhere\n203.0.113.8 nowhere" + pods, ""},
		{"this node holds, and serves the pods of its peers' own networks only", func(f *facts) {
			f.held[addr("203.0.113.7")], f.holders[addr("203.0.113.7")] = true, "b"
			f.published = map[string]map[netip.Addr]string{
				"a": {addr("10.244.1.9"): "team"},
				"b": {addr("10.244.2.9"): "team", addr("10.244.2.8"): "four", addr("10.244.3.9"): "team", addr("fd00:2::9"): "team", addr("10.244.2.7"): "none"},
				"x": {addr("10.244.9.9"): "team"},
			}
		}, "2001:db8::7 nowhere\n203.0.113.7 held\n203.0.113.8 nowhere" + pods + "\nremote 10.244.2.9 has 203.0.113.7", ""},
		{"no pods here", func(f *facts) { f.pods = f.pods[2:] }, "", ""},
		{"a wrong annotation", func(f *facts) { f.requests["team"] = parseRequest("203.0.113.99", prefixes("203.0.113.0/28")) }, "203.0.113.8 nowhere\ncni0 10.244.1.2 has nothing\ncni0 10.244.1.3 has 203.0.113.8\ncni0 fd00:1::2 has nothing\npublish 10.244.1.3 of four", "203.0.113.99 is not in -egress-networks"},
		{"the address of a node", func(f *facts) { f.requests["four"] = parseRequest("203.0.113.1", prefixes("203.0.113.0/28")) }, "2001:db8::7 nowhere\n203.0.113.7 nowhere\ncni0 10.244.1.2 has 203.0.113.7\ncni0 10.244.1.3 has nothing\ncni0 fd00:1::2 has 2001:db8::7\ncni0 fd00:1::3 has nothing\npublish 10.244.1.2 of team\npublish fd00:1::2 of team", "is the address of a node"},
		{"a pod's address", func(f *facts) { f.requests["four"] = parseRequest("10.244.1.9", prefixes("10.0.0.0/8")) }, "2001:db8::7 nowhere\n203.0.113.7 nowhere\ncni0 10.244.1.2 has 203.0.113.7\ncni0 10.244.1.3 has nothing\ncni0 fd00:1::2 has 2001:db8::7\ncni0 fd00:1::3 has nothing\npublish 10.244.1.2 of team\npublish fd00:1::2 of team", "is in a pod network"},
		{"a fault of the node", func(f *facts) { f.Fault, f.pods = errors.New("wireguard"), f.pods[1:2] }, "cni0 10.244.1.3 has nothing", ""},
		{"no MAC", func(f *facts) { f.pods = f.pods[1:2]; f.pods[0].MAC = "" }, "", "pod four/q has no MAC address"},
	} {
		f := world()
		c.change(f)
		d := decide(f)
		if have := show(d); have != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, have, c.want)
		}
		if have := strings.Join(d.faults, "\n"); !strings.Contains(have, c.fault) || c.fault == "" && have != "" {
			t.Errorf("%s: faults %q", c.name, have)
		}
	}
}

// TestIndexes: an address keeps its mark, and one that replaces it gets another. More addresses than marks are refused.
func TestIndexes(t *testing.T) {
	f := world()
	first := decide(f)
	f.indexes = first.indexes
	delete(f.requests, "team")
	f.requests["none"] = parseRequest("203.0.113.9", prefixes("203.0.113.0/28"))
	second := decide(f)
	if second.indexes[addr("203.0.113.8")] != first.indexes[addr("203.0.113.8")] {
		t.Errorf("%v, then %v", first.indexes, second.indexes)
	}
	for a, i := range first.indexes {
		if a != addr("203.0.113.8") && i == second.indexes[addr("203.0.113.9")] {
			t.Errorf("the mark of %s is reused at once", a)
		}
	}
	f = world()
	f.pods, f.requests = nil, map[string]Request{}
	for i := range egress.MaxAddresses + 2 {
		ns := fmt.Sprintf("ns%d", i)
		f.requests[ns] = parseRequest(fmt.Sprintf("203.0.113.%d", 10+i), prefixes("203.0.113.0/24"))
		f.pods = append(f.pods, localPod{ns, "p", "cni0", "02:00:00:00:00:01", []netip.Addr{addr(fmt.Sprintf("10.244.1.%d", 10+i))}})
	}
	d := decide(f)
	refused := 0
	for _, p := range d.spec.Pods {
		if p.Index == 0 {
			refused++
		}
	}
	if refused != 2 || len(d.indexes) != egress.MaxAddresses || len(d.faults) != 2 || slices.Max(slices.Collect(maps.Values(d.indexes))) != egress.MaxAddresses {
		t.Errorf("%d refused, indexes %v, faults %q", refused, d.indexes, d.faults)
	}
}

// TestRequest: a wrong annotation names what is wrong.
func TestRequest(t *testing.T) {
	allowed := prefixes("203.0.113.0/28", "2001:db8::/124")
	for text, want := range map[string]string{
		"203.0.113.7": "", "2001:db8::7": "", " 2001:db8::7 ,203.0.113.7": "",
		"": "is not an IPv4 or IPv6 address", "203.0.113.7,": "is not an", "203.0.113.7/32": "is not an", "fe80::1%eth0": "is not an", "::ffff:203.0.113.7": "is not an",
		"203.0.113.7,203.0.113.8": "more than one", "1,2,3": "more than one", "203.0.113.77": "not in -egress-networks", "2001:db8::77": "not in -egress-networks",
	} {
		r := parseRequest(text, allowed)
		if want == "" && r.err != nil || want != "" && (r.err == nil || !strings.Contains(r.err.Error(), want)) {
			t.Errorf("%q: %v", text, r.err)
		}
	}
	if err := CheckNetworks(allowed); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"0.0.0.0/0", "127.0.0.0/24", "169.254.1.0/24", "239.0.0.0/8", "fe80::/64", "::/0", "ff02::/16"} {
		if CheckNetworks(prefixes(bad)) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// TestLifetime: the kernel has no address when another node may have it, whenever the holder renews.
func TestLifetime(t *testing.T) {
	sent := time.Now()
	for late := time.Duration(0); late < 2*leaseDuration; late += 10 * time.Millisecond {
		now, until := sent.Add(late), sent.Add(renewDeadline)
		left := lifetime(until, now)
		if end := now.Add(left + kernelLate); left > 0 && end.After(sent.Add(leaseDuration)) {
			t.Errorf("after %s: a lifetime of %s", late, left)
		}
		if left != left.Truncate(time.Second) || left < 0 {
			t.Errorf("after %s: %s", late, left)
		}
	}
	// It outlives two renewals that fail.
	if left := lifetime(sent.Add(renewDeadline), sent.Add(retryPeriod)); left < 2*time.Second {
		t.Errorf("a lifetime of %s", left)
	}
}

// TestInside: the destinations of the cluster.
func TestInside(t *testing.T) {
	f := world()
	f.Near = prefixes("198.51.100.0/24")
	for a, want := range map[string]bool{
		"10.244.9.9": true, "fd00:9::1": true, "192.0.2.1": true, "198.51.100.7": true, "169.254.20.10": true, "224.0.0.1": true, "ff02::1": true,
		"192.0.2.2": false, "203.0.113.7": false, "2001:db8::9": false,
	} {
		if f.inside(addr(a)) != want {
			t.Errorf("%s: inside is %t", a, !want)
		}
	}
}

func TestCloud(t *testing.T) {
	for id, want := range map[string]string{"aws:///eu-west-1a/i-1": "aws", "gce://p/z/i": "gce", "azure:///x": "azure", "kind://docker/kind/a": "", "": "", "openstack:///1": ""} {
		if have := cloudOf(id); have != want {
			t.Errorf("%s: %q", id, have)
		}
	}
}

// TestIneligible: only a labelled node of no cloud holds addresses.
func TestIneligible(t *testing.T) {
	k := &Keeper{}
	for _, c := range []struct {
		value, provider string
		labelled        bool
		want            string
	}{
		{"-", "", false, "no label"}, {"false", "", false, "no label"}, {"", "", true, ""}, {"", "aws:///a/i-1", true, "its provider aws"},
	} {
		k.own = ownNode{}
		if c.value != "-" {
			k.own.Metadata.Labels = map[string]string{NodeLabel: c.value}
		}
		k.own.Spec.ProviderID = c.provider
		labelled, why := k.ineligible()
		if labelled != c.labelled || c.want == "" && why != nil || c.want != "" && (why == nil || !strings.Contains(why.Error(), c.want)) {
			t.Errorf("%q, %q: %t, %v", c.value, c.provider, labelled, why)
		}
	}
}
