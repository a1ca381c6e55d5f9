package advice_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// TestFix gives commands to a node with two networks of one subnet, a network of another subnet, and an attachment of another plugin.
func TestFix(t *testing.T) {
	changes := func(objects ...netops.Object) json.RawMessage {
		var all []netops.Change
		for _, o := range objects {
			all = append(all, netops.Change{Do: netops.Step{Verb: netops.VerbAdd, Object: o}})
		}
		raw, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	pod := func(network, id, link, mac, address string, made ...netops.Object) store.Attachment {
		return store.Attachment{
			Key: store.Key{Network: network, ContainerID: id, IfName: "eth0"}, Netns: store.Netns{Path: "/run/netns/" + id}, HostLink: link, MAC: mac,
			Addresses: []netip.Prefix{netip.MustParsePrefix(address)}, Parts: []store.Part{{Role: "bridge", Changes: changes(made...)}},
		}
	}
	shared := func(network, link string) store.Network {
		return store.Network{Name: network, Role: "bridge", Shared: changes(&netops.Addr{In: netops.Host, Shared: true, Link: link, Address: netip.MustParsePrefix("10.22.0.1/24")})}
	}
	dump := &store.Dump{
		Attachments: []store.Attachment{
			pod("a", "p1", "veth1", "02:00:00:00:00:01", "10.22.0.2/24", &netops.Qdisc{In: netops.Host, Link: "veth1", Kind: "tbf"}),
			pod("b", "p2", "veth2", "02:00:00:00:00:02", "10.22.0.2/24"),
			pod("c", "p3", "veth3", "02:00:00:00:00:03", "10.23.0.2/24",
				&netops.Element{Set: netops.EgressSet + "4", Key: []string{"cni2", "10.23.0.2"}, Value: []string{"192.0.2.7"}}),
		},
		Networks: []store.Network{shared("a", "cni0"), shared("b", "cni1")},
	}
	caches := map[string]*recovery.CacheEntry{"x": {
		ContainerID: "p4", Network: "d", IfName: "eth0", Netns: "/run/netns/p4", Result: json.RawMessage(`{"ips":[{"address":"10.24.0.2/24"}]}`),
	}}
	r := advice.New(dump, caches, []netops.LinkInfo{
		{Name: "cni0", Kind: "bridge"},
		{Name: "cni1", Kind: "bridge"},
		{Name: "cni2", Kind: "bridge"},
		{Name: "docker9", Kind: "bridge"},
		{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Name: "lo"},
		{Name: "flannel.1", Kind: "vxlan"},
		{Name: "veth1", Kind: "veth", Master: "cni0"},
		{Name: "veth2", Kind: "veth", Master: "cni1"},
		{Name: "veth3", Kind: "veth", Master: "cni2"},
	})
	const separate = "give the networks a and b different subnets"
	for _, c := range []struct{ line, of, want string }{
		{"cnibox repair", "a", ""},
		{"ip addr del 10.22.0.1/24 dev cni0", "b", separate},
		{"ip addr del 10.22.0.1/24 dev cni0", "a", "cnibox state"},
		{"true && ip addr del 10.22.0.1/24 dev cni0", "b", separate},
		{"ip -4 addr del 10.22.0.1/24 dev cni0", "b", separate},
		{"ip addr del 10.22.0.1/24 dev eth0", "a", ""}, // the records have it on a bridge
		{"ip addr del 10.22.0.2/32 dev lo", "a", ""},   // and this one in a pod
		{"ip addr del 10.22.0.1/16 dev cni0", "a", "cnibox state"},
		{"ip addr del 10.22.0.1/16 dev cni0 && cnibox repair", "a", ""},
		{"ip addr del 10.22.0.1/24 dev cni0 && cnibox repair", "a", "cnibox state"},
		{"ip addr del 192.0.2.1/24 dev eth0", "a", "cnibox state"},
		{"ip addr del 192.0.2.7/24 dev docker9", "c", "cnibox state"}, // packets leave with it
		{"ip addr del 10.23.0.1/24 dev cni2", "a", "give the networks a and c different subnets"},
		{"ip addr del 10.24.0.1/24 dev docker9", "a", "give the networks a and d different subnets"},
		{"ip addr del 10.99.0.1/24 dev cni2", "c", ""},
		{"nsenter --net=/run/netns/p3 ip addr del 10.23.0.2/24 dev eth0", "c", "cnibox state"},
		{"nsenter --net=/run/netns/p3 ip addr del 10.22.0.2/24 dev eth0 && ip neigh flush to 10.22.0.2 dev cni0", "a", ""},
		{"ip route prepend 10.22.0.2 dev cni1", "b", separate},
		{"ip route prepend 10.23.0.2 dev cni2", "c", ""},
		{"ip -4 rule add to 10.22.0.2 lookup main priority 1", "b", separate},
		{"ip -4 rule add from 10.22.0.0/24 lookup main priority 1", "b", separate},
		{"ip -4 rule add to 198.18.0.1 lookup main priority 1", "b", ""},
		{"ip neigh replace 10.22.0.2 lladdr 02:00:00:00:00:02 nud reachable dev cni0", "b", separate},
		{"ip neigh replace 10.22.0.2 lladdr 02:00:00:00:00:02 nud reachable dev cni1", "b", ""},
		{"ip neigh change 10.244.1.0 dev flannel.1 nud stale", "", "cnibox state"},
		{"ip neigh change 192.0.2.9 dev eth0 nud stale", "", ""},
		{"ip link set cni0 down name cni0-old", "b", separate},
		{"ip link set cni0 mtu 1500", "b", ""},
		{"ip link set eth0 up", "b", ""},
		{"ip link set eth0 mtu 1400", "", ""},
		{"ip link set eth0 mtu 1200", "", "cnibox state"},
		{"ip link set flannel.1 mtu 1200", "", ""},
		{"tc qdisc del dev veth1 root", "a", "cnibox state"},
		{"tc qdisc del dev veth3 root", "c", ""},
		{"bridge fdb del 02:00:00:00:00:09 dev flannel.1 self", "", "cnibox state"},
		{"bridge fdb replace 02:00:00:00:00:01 dev veth1 master dynamic", "a", ""},
		{"bridge link set dev veth1 isolated off", "a", ""},
		{"nft delete table inet cnibox_trace", "", ""},
		{"kubectl -n kube-system delete pod -l app.kubernetes.io/name=cnibox --field-selector spec.nodeName=n", "", ""},
		{"kubectl -n kube-system delete pod -l app=x", "", "cnibox state"},
		{"nft delete table ip nat", "", "cnibox state"},
		{"iptables -F", "", "cnibox state"},
	} {
		want := c.want
		if want == "" {
			want = c.line
		}
		if have, harm := r.Fix(c.line, c.of); have != want || (harm == "") != (c.want == "") {
			t.Errorf("%s for %s: %q because of %q, want %q", c.line, c.of, have, harm, want)
		}
	}
}

// TestSplit: a command that mends nothing is no fix.
func TestSplit(t *testing.T) {
	for line, want := range map[string]bool{
		"":                                true,
		"cnibox agent status":             false,
		"cnibox lint /etc/cni/net.d/a":    false,
		"cnibox state":                    false,
		"cnibox state repair --force":     true,
		"cnibox state reap":               true,
		"cnibox repair":                   true,
		"df -h /run/cnibox":               false,
		"nsenter --net=/run/netns/p df /": false,
		"dfx":                             true,
	} {
		fix, see := advice.Split(line)
		if mends := fix == line && see == ""; mends != want || !mends && see != line {
			t.Errorf("%s: %q, %q", line, fix, see)
		}
	}
}
