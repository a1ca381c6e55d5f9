// Package routed is the CNI role "routed": it connects pods by pairs of interfaces
// and routes, without a bridge. The pods' addresses belong to a cloud's network or to
// any other network. The host has a route to each pod and forwards its
// packets. The pod has one virtual gateway address, which no interface has.
package routed

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Conf is the network configuration of the routed role.
type Conf struct {
	roles.NetConf
	attach.PairConf
	// HostVethPrefix is the start of the names of the pods' interfaces on the
	// host, up to 4 bytes ("eni", "azv"). Default "veth".
	HostVethPrefix string `json:"hostVethPrefix,omitempty"`
	// MTU of both ends of the pair. 0 means the MTU of the NIC that the
	// pod's addresses belong to, or, if that is not known, of the default
	// route's interface.
	MTU int `json:"mtu,omitempty"`
	// SNAT translates the source of pods' packets that leave the network to the
	// node's address. Default: true for IPv4 if the cloud reports the prefixes
	// of its network, else false.
	SNAT *bool `json:"snat,omitempty"`
	// NoSNAT lists further networks that pods reach with their own addresses,
	// as CIDRs.
	NoSNAT []string `json:"noSNAT,omitempty"`
	// IPMasqBackend is "nftables" (default). "iptables" is accepted with a
	// warning, and nftables is used.
	IPMasqBackend string `json:"ipMasqBackend,omitempty"`
	// EgressAddress is an address of the node that pods' packets to other networks
	// get as their source: a string, or a list of one IPv4 and one IPv6 address. With
	// several NICs, the packets leave by the first one. It cannot be combined with
	// snat set to false.
	EgressAddress roles.StringList `json:"egressAddress,omitempty"`
	// EgressExcept are networks that pods reach as without egressAddress, in addition
	// to those of noSNAT. The types vxlan and flannel set it.
	EgressExcept []netip.Prefix `json:"egressExcept,omitempty"`
	// Uplinks are the node's NICs in addition to the NIC of the default route.
	// Pods with an address in an uplink's subnets send through that uplink.
	// Without this key the NICs that the cloud reports are used.
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// TableBase is the base of the routing tables' numbers: NIC n has the table
	// tableBase + n. n is the cloud's device number of the NIC, or the position
	// in uplinks, counted from 1. Default 1536.
	TableBase int `json:"tableBase,omitempty"`
	// Priorities are the priorities of the policy rules, which exist only if
	// several NICs are in use.
	Priorities Priorities `json:"priorities,omitzero"`
}

// Uplink is one NIC of the node.
type Uplink struct {
	// Link is the interface's name.
	Link string `json:"link"`
	// Subnets hold the pod addresses that send through the interface, as CIDRs.
	Subnets []string `json:"subnets"`
	// Gateways are the routers on the interface, one for each address family of
	// the subnets.
	Gateways []string `json:"gateways"`
}

// Priorities of the policy rules. The kernel evaluates lower values first.
type Priorities struct {
	// HostRoutes is the priority of the rule for addresses of this node: it
	// uses only those routes of the main table that have a single address as
	// destination. Default 512.
	HostRoutes int `json:"hostRoutes,omitempty"`
	// Mark is the priority of the rule for packets that must leave through the
	// first NIC: it uses the main table. Default 1024.
	Mark int `json:"mark,omitempty"`
	// From is the priority of the rules that select the table of a NIC by a
	// pod's source address. Default 1536.
	From int `json:"from,omitempty"`
}

const (
	defaultTableBase  = 1536
	defaultHostRoutes = 512
	defaultMark       = 1024
	defaultFrom       = 1536
	// maxPrefix leaves 11 bytes for the digits in an interface's name.
	maxPrefix = 4
	// maxDevice is the largest number of a NIC.
	maxDevice = 1 << 16
	// mainPriority is the priority of the kernel's rule for the main table.
	mainPriority = 32766
)

// SetDefaults sets the documented default values.
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
	text(&c.HostVethPrefix, attachment.HostLinkPrefix)
	number(&c.TableBase, defaultTableBase)
	number(&c.Priorities.HostRoutes, defaultHostRoutes)
	number(&c.Priorities.Mark, defaultMark)
	number(&c.Priorities.From, defaultFrom)
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.IPAM.Type == "" {
		f.Addf("ipam.type", "is missing: a routed interface requires addresses")
	}
	if err := roles.LinkName(c.HostVethPrefix); err != nil || len(c.HostVethPrefix) > maxPrefix {
		f.Addf("hostVethPrefix", "%q cannot begin the name of an interface: use up to %d bytes, such as \"eni\"", c.HostVethPrefix, maxPrefix)
	}
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the NIC's) to 65535", c.MTU)
	}
	c.masquerade().Check(&f)
	c.CheckPair(&f)
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

// masquerade is the configured masquerading.
func (c *Conf) masquerade() attach.Masquerade {
	return attach.Masquerade{
		On: c.SNAT == nil || *c.SNAT, Key: "snat", Backend: c.IPMasqBackend, Egress: c.EgressAddress, Except: c.EgressExcept,
	}
}

// prefixes decodes CIDRs and reports the invalid ones.
func prefixes(f *roles.Faults, path string, texts []string) []netip.Prefix {
	var all []netip.Prefix
	for i, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			f.Addf(path+"["+strconv.Itoa(i)+"]", "%q is not a CIDR: use the form 10.0.0.0/16", text)
		case p != p.Masked():
			f.Addf(path+"["+strconv.Itoa(i)+"]", "%s has host bits: use %s", p, p.Masked())
		default:
			all = append(all, p)
		}
	}
	return all
}

// parsedSubnets are the valid ones of the uplink's subnets.
func (u *Uplink) parsedSubnets() []netip.Prefix {
	return prefixes(new(roles.Faults), "", u.Subnets)
}

// gateway is the router for an address family, or the zero Addr.
func (u *Uplink) gateway(is4 bool) netip.Addr {
	for _, text := range u.Gateways {
		if gw, err := roles.ParseAddr(text); err == nil && gw.Is4() == is4 {
			return gw
		}
	}
	return netip.Addr{}
}

func (u *Uplink) validate(f *roles.Faults, path string) {
	f.Check(path+".link", roles.LinkName(u.Link))
	for i, text := range u.Gateways {
		if gw, err := roles.ParseAddr(text); err != nil || gw.IsUnspecified() || gw.IsMulticast() || gw.IsLoopback() {
			f.Addf(fmt.Sprintf("%s.gateways[%d]", path, i), "%q is not the address of a router", text)
		}
	}
	if len(u.Subnets) == 0 {
		f.Addf(path+".subnets", "is missing: set the subnets of the pods that send through %q", u.Link)
	}
	for _, p := range prefixes(f, path+".subnets", u.Subnets) {
		if !u.gateway(p.Addr().Is4()).IsValid() {
			f.Addf(path+".gateways", "no gateway has the address family of %s: add the router on %q", p, u.Link)
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
		f.Addf("priorities", "%d, %d, %d are not in order: set hostRoutes lower than mark, and mark lower than from", p.HostRoutes, p.Mark, p.From)
	}
}
