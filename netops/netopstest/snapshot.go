package netopstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Snapshot returns the kernel's network state of the host as canonical text, one
// object a line, sorted: links with their virtual functions, addresses, routes, rules, permanent neighbours,
// forwarding, queueing disciplines with their filters, all of nftables, and the
// named namespaces. It omits what changes without a test's action: indexes,
// carrier, link-local addresses, multicast routes, counters.
func Snapshot(t testing.TB) string {
	t.Helper()
	s, err := snapshot()
	if err != nil {
		t.Fatalf("read kernel state: %v", err)
	}
	return s + named()
}

// named returns the namespaces that `ip netns` lists.
func named() string {
	const dir = "/run/netns"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, e := range entries {
		var fs unix.Statfs_t
		// A namespace that is mounted in another mount namespace is a
		// plain file here.
		if unix.Statfs(dir+"/"+e.Name(), &fs) == nil && fs.Type == unix.NSFS_MAGIC {
			fmt.Fprintf(&b, "netns %s\n", e.Name())
		}
	}
	return b.String()
}

// Snapshot is the same for the container's namespace.
func (ns *NS) Snapshot(t testing.TB) string {
	t.Helper()
	var s string
	ns.Do(t, func() (err error) {
		s, err = snapshot()
		return err
	})
	return s
}

func snapshot() (string, error) {
	var lines []string
	names := map[int]string{}
	for _, read := range []func(map[int]string) ([]string, error){links, addresses, routes, rules, neighbours, sysctls, ruleset, qdiscs} {
		l, err := retried(func() ([]string, error) { return read(names) })
		if err != nil {
			return "", err
		}
		lines = append(lines, l...)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}

// retried repeats a dump that a concurrent change interrupted.
func retried(read func() ([]string, error)) ([]string, error) {
	for {
		l, err := read()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return l, err
		}
	}
}

func links(names map[int]string) ([]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out []string
	for _, l := range all {
		a := l.Attrs()
		out = append(out, fmt.Sprintf("link %s %s mac %s mtu %d master %q up %v promisc %d allmulti %v txqlen %d alias %q%s",
			a.Name, l.Type(), a.HardwareAddr, a.MTU, names[a.MasterIndex], a.Flags&net.FlagUp != 0, a.Promisc,
			a.RawFlags&unix.IFF_ALLMULTI != 0, a.TxQLen, a.Alias, ofKind(l, names)))
		for _, v := range a.Vfs {
			out = append(out, fmt.Sprintf("vf %d of %s mac %s vlan %d qos %d proto %#x rate %d to %d spoofchk %v trust %d state %d",
				v.ID, a.Name, v.Mac, v.Vlan, v.Qos, v.VlanProto, v.MinTxRate, v.MaxTxRate, v.Spoofchk, v.Trust, v.LinkState))
		}
	}
	return out, nil
}

// ofKind returns the properties that only some kinds of links have. A parent in
// another namespace has no name here.
func ofKind(l netlink.Link, names map[int]string) string {
	parent := ""
	if a := l.Attrs(); a.NetNsID < 0 {
		parent = names[a.ParentIndex]
	}
	switch l := l.(type) {
	case *netlink.Macvlan:
		return fmt.Sprintf(" parent %q mode %d", parent, l.Mode)
	case *netlink.IPVlan:
		return fmt.Sprintf(" parent %q mode %d", parent, l.Mode)
	case *netlink.Vlan:
		return fmt.Sprintf(" parent %q id %d", parent, l.VlanId)
	case *netlink.Tuntap:
		return fmt.Sprintf(" mode %d owner %d group %d", l.Mode, int32(l.Owner), int32(l.Group))
	}
	return ""
}

func addresses(names map[int]string) ([]string, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	var out []string
	for _, a := range all {
		if !a.IP.IsLinkLocalUnicast() {
			out = append(out, fmt.Sprintf("address %s dev %s", a.IPNet, names[a.LinkIndex]))
		}
	}
	return out, err
}

func routes(names map[int]string) ([]string, error) {
	var out []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if r.Table == unix.RT_TABLE_LOCAL || (r.Dst != nil && (r.Dst.IP.IsMulticast() || r.Dst.IP.IsLinkLocalUnicast())) {
				continue
			}
			out = append(out, fmt.Sprintf("route %v via %v dev %s table %d metric %d", r.Dst, r.Gw, names[r.LinkIndex], r.Table, r.Priority))
		}
	}
	return out, nil
}

func rules(map[int]string) ([]string, error) {
	all, err := netlink.RuleList(netlink.FAMILY_ALL)
	var out []string
	for _, r := range all {
		out = append(out, "rule "+r.String())
	}
	return out, err
}

func neighbours(names map[int]string) ([]string, error) {
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	var out []string
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT != 0 && !n.IP.IsMulticast() {
			out = append(out, fmt.Sprintf("neighbour %s %s dev %s", n.IP, n.HardwareAddr, names[n.LinkIndex]))
		}
	}
	return out, err
}

func sysctls(map[int]string) ([]string, error) {
	var out []string
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		b, err := os.ReadFile("/proc/sys/" + key)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		out = append(out, fmt.Sprintf("sysctl %s = %s", key, strings.TrimSpace(string(b))))
	}
	return out, nil
}

func ruleset(map[int]string) ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTables()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) { // a kernel without nftables
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tables {
		name := fmt.Sprintf("nft %d %s", t.Family, t.Name)
		out = append(out, name)
		sets, err := c.GetSets(t)
		if err != nil {
			return nil, err
		}
		for _, s := range sets {
			els, err := c.GetSetElements(s)
			if err != nil {
				return nil, err
			}
			for _, e := range els {
				out = append(out, fmt.Sprintf("%s set %s element %x-%x: %x %q", name, s.Name, e.Key, e.KeyEnd, e.Val, e.Comment))
			}
		}
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		rs, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("nft %d %s chain %s: %d rules", ch.Table.Family, ch.Table.Name, ch.Name, len(rs)))
	}
	return out, nil
}
