package agent_test

import (
	"fmt"
	"slices"
	"strings"
)

// dump returns the node's network state in the kernel.
func (n *node) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n", n.name)
	for _, args := range []string{"-d addr", "route", "-6 route", "neigh", "nexthop"} {
		out, _ := n.try("ip", strings.Fields(args)...)
		b.WriteString(out)
	}
	out, _ := n.try("bridge", "fdb")
	return b.String() + out
}

// picture returns the agent's objects in the kernel, without numbers that the kernel chooses.
func (n *node) picture() string {
	n.w.t.Helper()
	var lines []string
	add := func(out string) {
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if i := slices.Index(f, "nhid"); i >= 0 {
				f = slices.Delete(f, i, i+2)
			}
			if i := slices.Index(f, "id"); i == 0 {
				f = f[2:]
			}
			lines = append(lines, strings.Join(f, " "))
		}
	}
	for _, v6 := range []string{"-4", "-6"} {
		add(n.ip(v6 + " route show proto 142"))
		add(n.ip(v6 + " nexthop show proto 142"))
	}
	for _, dev := range []string{"flannel.1", "flannel-v6.1"} {
		if out, err := n.try("ip", "-o", "link", "show", dev); err == nil {
			_, out, _ = strings.Cut(out, ": ")
			add(out)
			out, _ = n.try("ip", "-o", "addr", "show", "dev", dev, "scope", "global")
			_, out, _ = strings.Cut(out, ": ")
			add(out)
			out, _ = n.try("ip", "neigh", "show", "dev", dev, "nud", "permanent")
			add(out)
			out, _ = n.try("bridge", "fdb", "show", "dev", dev)
			add(out)
		}
	}
	for _, key := range []string{"ipv4/conf/all", "ipv6/conf/all", "ipv4/conf/flannel.1"} {
		out, _ := n.try("cat", "/proc/sys/net/"+key+"/forwarding")
		add(key + " forwards " + out)
	}
	slices.Sort(lines)
	if out, err := n.try("nft", "list", "table", "inet", "cnibox_overlay"); err == nil {
		lines = append(lines, out)
	}
	return strings.Join(lines, "\n")
}

// snapshot returns the node's complete network state.
func (n *node) snapshot() string {
	n.w.t.Helper()
	rules, err := n.try("nft", "list", "ruleset")
	must(n.w.t, err)
	return n.ns.Snapshot(n.w.t) + rules
}
