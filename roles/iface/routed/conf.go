// Package routed is the CNI role "routed": pods with addresses of the cloud's own
// network, or of any other, that no bridge connects. The host has a route to each pod
// and routes for it; the pod has one gateway, which is nobody's address.
package routed

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// Conf is the network configuration of the routed role.
type Conf struct {
	roles.NetConf
	// HostVethPrefix begins the names of the interfaces on the host; up to 4 bytes
	// ("eni", "azv"). Default "veth".
	HostVethPrefix string `json:"hostVethPrefix,omitempty"`
	// MTU of both ends; 0 is that of the NIC that the addresses are of, else of the
	// device of the default route.
	MTU int `json:"mtu,omitempty"`
	// SNAT gives traffic of pods that leaves the network the node's address. By
	// default it does for IPv4 where the cloud tells its network's prefixes.
	SNAT *bool `json:"snat,omitempty"`
	// NoSNAT are further networks that pods reach with their own addresses, as CIDRs.
	NoSNAT []string `json:"noSNAT,omitempty"`
	// IPMasqBackend is "nftables" (default). "iptables" is accepted with a
	// warning and served by nftables.
	IPMasqBackend string `json:"ipMasqBackend,omitempty"`
	// Uplinks are the node's NICs beside that of the default route, by which pods with
	// addresses of theirs leave. Without any it is what the cloud says.
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// TableBase numbers the routing tables: NIC n has tableBase + n, where n is the
	// cloud's number of it, or its place among the uplinks from 1 on. Default 1536.
	TableBase int `json:"tableBase,omitempty"`
	// Priorities are those of the policy rules, which there are where several NICs are
	// in use.
	Priorities Priorities `json:"priorities,omitzero"`
}

// Uplink is one NIC of the node.
type Uplink struct {
	// Link is the interface's name.
	Link string `json:"link"`
	// Subnets hold the addresses that leave by it, as CIDRs.
	Subnets []string `json:"subnets"`
	// Gateways are the routers on it, one for each family of the subnets.
	Gateways []string `json:"gateways"`
}

// Priorities of the policy rules; lower ones go first.
type Priorities struct {
	// HostRoutes is of the rule that leads to what is on this node: the main table's
	// routes to single addresses. Default 512.
	HostRoutes int `json:"hostRoutes,omitempty"`
	// Mark is of the rule that leads what the first NIC has to carry to the main
	// table. Default 1024.
	Mark int `json:"mark,omitempty"`
	// From is of the rules that lead a pod's packets to its NIC's table. Default 1536.
	From int `json:"from,omitempty"`
}

const (
	defaultTableBase  = 1536
	defaultHostRoutes = 512
	defaultMark       = 1024
	defaultFrom       = 1536
	// maxPrefix leaves room for 11 digits in an interface's name.
	maxPrefix = 4
	// maxDevice is the largest number of a NIC that tables are counted with.
	maxDevice = 1 << 16
	// mainPriority is that of the kernel's rule for the main table.
	mainPriority = 32766
)

// SetDefaults fills in what the documentation calls default.
func (c *Conf) SetDefaults() {
	text := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	number := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	text(&c.HostVethPrefix, record.HostLinkPrefix)
	number(&c.TableBase, defaultTableBase)
	number(&c.Priorities.HostRoutes, defaultHostRoutes)
	number(&c.Priorities.Mark, defaultMark)
	number(&c.Priorities.From, defaultFrom)
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.IPAM.Type == "" {
		f.Addf("ipam.type", "is missing: an interface that is routed is of no use without addresses")
	}
	if err := roles.LinkName(c.HostVethPrefix); err != nil || len(c.HostVethPrefix) > maxPrefix {
		f.Addf("hostVethPrefix", "%q begins no interface's name: use up to %d bytes, such as \"eni\"", c.HostVethPrefix, maxPrefix)
	}
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the NIC's) to 65535", c.MTU)
	}
	c.masquerade().Check(&f)
	prefixes(&f, "noSNAT", c.NoSNAT)
	for i := range c.Uplinks {
		c.Uplinks[i].validate(&f, fmt.Sprintf("uplinks[%d]", i))
	}
	if last := c.TableBase + maxDevice; c.TableBase < unix.RT_TABLE_LOCAL || int64(last) > 1<<32-1 {
		f.Addf("tableBase", "%d is out of range: use %d to %d", c.TableBase, unix.RT_TABLE_LOCAL, int64(1<<32-1-maxDevice))
	}
	c.Priorities.validate(&f)
	return f.Err()
}

// masquerade is what the configuration asks of NAT.
func (c *Conf) masquerade() attach.Masquerade {
	return attach.Masquerade{On: c.SNAT == nil || *c.SNAT, Backend: c.IPMasqBackend}
}

// prefixes decodes CIDRs and reports those that are none.
func prefixes(f *roles.Faults, path string, texts []string) []netip.Prefix {
	var all []netip.Prefix
	for i, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			f.Addf(path+"["+strconv.Itoa(i)+"]", "%q is no CIDR: use the form 10.0.0.0/16", text)
		case p != p.Masked():
			f.Addf(path+"["+strconv.Itoa(i)+"]", "%s is no network: use %s", p, p.Masked())
		default:
			all = append(all, p)
		}
	}
	return all
}

// subnets and gateways are the uplink's, as far as they can be read.
func (u *Uplink) subnets() []netip.Prefix {
	return prefixes(new(roles.Faults), "", u.Subnets)
}

// gateway is the router for a family, or the zero Addr.
func (u *Uplink) gateway(is4 bool) netip.Addr {
	for _, text := range u.Gateways {
		if gw, err := roles.ParseAddr(text); err == nil && gw.Is4() == is4 {
			return gw
		}
	}
	return netip.Addr{}
}

func (u *Uplink) validate(f *roles.Faults, path string) {
	if err := roles.LinkName(u.Link); err != nil {
		f.Addf(path+".link", "%v", err)
	}
	for i, text := range u.Gateways {
		if gw, err := roles.ParseAddr(text); err != nil || gw.IsUnspecified() || gw.IsMulticast() || gw.IsLoopback() {
			f.Addf(fmt.Sprintf("%s.gateways[%d]", path, i), "%q is no address of a router", text)
		}
	}
	if len(u.Subnets) == 0 {
		f.Addf(path+".subnets", "is missing: name the subnets whose pods leave by %q", u.Link)
	}
	for _, p := range prefixes(f, path+".subnets", u.Subnets) {
		if !u.gateway(p.Addr().Is4()).IsValid() {
			f.Addf(path+".gateways", "none is of %s's family: name the router on %q", p, u.Link)
		}
	}
}

func (p *Priorities) validate(f *roles.Faults) {
	for _, v := range []struct {
		path  string
		value int
	}{{"hostRoutes", p.HostRoutes}, {"mark", p.Mark}, {"from", p.From}} {
		if v.value < 1 || v.value >= mainPriority {
			f.Addf("priorities."+v.path, "%d is out of range: use 1 to %d", v.value, mainPriority-1)
		}
	}
	if p.HostRoutes >= p.Mark || p.Mark >= p.From {
		f.Addf("priorities", "%d, %d, %d: hostRoutes has to be lower than mark, and that lower than from", p.HostRoutes, p.Mark, p.From)
	}
}
