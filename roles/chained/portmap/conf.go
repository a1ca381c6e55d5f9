// Package portmap is the CNI role "portmap": it leads ports of the node to a
// container, with the keys of the reference plugin.
package portmap

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the portmap role.
type Conf struct {
	roles.NetConf
	// Backend is "nftables" (default). "iptables" is accepted with a warning and
	// served by nftables.
	Backend string `json:"backend,omitempty"`
	// SNAT hides the source of connections to a mapped port that the container
	// could not answer otherwise: from itself and others of its subnet, whom it
	// would answer past the node, and from 127.0.0.0/8 and ::1. Default true.
	SNAT *bool `json:"snat,omitempty"`
	// MasqAll hides every source, for containers that answer by another way than
	// the node. Not without snat.
	MasqAll bool `json:"masqAll,omitempty"`
	// MarkMasqBit is the bit of the packet mark, 0 to 31, that connections get
	// whose source is hidden. Nothing here needs one: without the key there is none.
	MarkMasqBit *int `json:"markMasqBit,omitempty"`
	// ExternalSetMarkChain names an iptables chain, such as KUBE-MARK-MASQ, whose
	// marks have others hide sources. It is accepted with a warning: sources are
	// hidden all the same, by a rule of our own. Not with markMasqBit.
	ExternalSetMarkChain string `json:"externalSetMarkChain,omitempty"`
	// ConditionsV4 are what connections over IPv4 must be like to be led to the
	// container, all of them, in the words of iptables (-s, -d, -i with an address,
	// network or device, "!" before) or of nft (ip saddr, ip daddr, iifname, "!="
	// between).
	ConditionsV4 []string `json:"conditionsV4,omitempty"`
	// ConditionsV6 are the same for IPv6 (ip6 saddr, ip6 daddr).
	ConditionsV6 []string `json:"conditionsV6,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// PortMappings are the ports to map. Without any there is nothing to do.
		PortMappings []Mapping `json:"portMappings,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

// Mapping leads one port of the node, or a range, to the container.
type Mapping struct {
	// HostPort is the port of the node, 1 to 65535.
	HostPort int `json:"hostPort"`
	// ContainerPort is the container's, 1 to 65535.
	ContainerPort int `json:"containerPort"`
	// Protocol is "tcp" (default), "udp" or "sctp".
	Protocol string `json:"protocol,omitempty"`
	// HostIP is the node's address that the mapping is for. Empty means all of
	// them, "0.0.0.0" all of IPv4, "::" all of IPv6.
	HostIP string `json:"hostIP,omitempty"`
	// Range is how many ports are mapped, one by one from HostPort and
	// ContainerPort on; 0 is one.
	Range int `json:"range,omitempty"`

	// hostIP is HostIP, the zero Addr for all.
	hostIP netip.Addr
}

const (
	maxMarkBit = 31
	maxPort    = math.MaxUint16
)

// SetDefaults fills in what the documentation calls default.
func (c *Conf) SetDefaults() {
	for i := range c.RuntimeConfig.PortMappings {
		m := &c.RuntimeConfig.PortMappings[i]
		if m.Protocol = strings.ToLower(m.Protocol); m.Protocol == "" {
			m.Protocol = "tcp"
		}
		m.Range = max(m.Range, 1)
		m.hostIP, _ = roles.ParseAddr(m.HostIP)
	}
}

// hidesSources is snat with its default.
func (c *Conf) hidesSources() bool { return c.SNAT == nil || *c.SNAT }

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.Backend != "" && c.Backend != "nftables" && c.Backend != "iptables" {
		f.Addf("backend", "%q is not known: use \"nftables\"", c.Backend)
	}
	if c.MarkMasqBit != nil {
		if *c.MarkMasqBit < 0 || *c.MarkMasqBit > maxMarkBit {
			f.Addf("markMasqBit", "%d is no bit of a packet mark: use 0 to %d", *c.MarkMasqBit, maxMarkBit)
		}
		if c.ExternalSetMarkChain != "" {
			f.Addf("externalSetMarkChain", "cannot be combined with markMasqBit: choose one")
		}
	}
	c.checkConditions(&f, "conditionsV4", false, c.ConditionsV4)
	c.checkConditions(&f, "conditionsV6", true, c.ConditionsV6)
	for i, m := range c.RuntimeConfig.PortMappings {
		m.check(&f, fmt.Sprintf("runtimeConfig.portMappings[%d]", i))
	}
	if f.Err() == nil {
		c.checkTwice(&f)
	}
	return f.Err()
}

func (c *Conf) checkConditions(f *roles.Faults, path string, v6 bool, words []string) {
	if _, err := judge(v6, words); err != nil {
		f.Addf(path, "%v", err)
	}
}

// check reports the faults of one mapping, which is at path.
func (m Mapping) check(f *roles.Faults, path string) {
	for _, p := range []struct {
		key  string
		port int
	}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
		switch {
		case p.port < 1 || p.port > maxPort:
			f.Addf(path+"."+p.key, "%d is no port: use 1 to %d", p.port, maxPort)
		case p.port > maxPort-m.Range+1:
			f.Addf(path+".range", "%d ports from %s %d on go beyond %d", m.Range, p.key, p.port, maxPort)
		}
	}
	if m.Protocol != "tcp" && m.Protocol != "udp" && m.Protocol != "sctp" {
		f.Addf(path+".protocol", "%q is not known: use \"tcp\", \"udp\" or \"sctp\"", m.Protocol)
	}
	if m.HostIP != "" && !m.hostIP.IsValid() {
		f.Addf(path+".hostIP", "%q is no IP address: give one of the node's, or none for all", m.HostIP)
	}
}

// checkTwice reports ports that two mappings lead to different places. The same
// mapping again is none: some runtimes give it once for each of a pod's containers.
func (c *Conf) checkTwice(f *roles.Faults) {
	if len(c.RuntimeConfig.PortMappings) < 2 {
		return // most have one, whose ports all differ
	}
	type hostPort struct {
		protocol string
		port     int
	}
	type use struct {
		mapping, target int
		ip              netip.Addr
	}
	used := map[hostPort][]use{}
	for i, m := range c.RuntimeConfig.PortMappings {
		told := false
		for n := range m.Range {
			at := hostPort{m.Protocol, m.HostPort + n}
			mine := use{i, m.ContainerPort + n, m.hostIP}
			for _, u := range used[at] {
				if u.target != mine.target && overlap(u.ip, mine.ip) && !told {
					f.Addf(fmt.Sprintf("runtimeConfig.portMappings[%d].hostPort", i), "%d/%s is mapped by portMappings[%d] already, to another port of the container", at.port, at.protocol, u.mapping)
					told = true
				}
			}
			used[at] = append(used[at], mine)
		}
	}
}

// overlap tells whether a connection can be to both addresses.
func overlap(a, b netip.Addr) bool {
	switch {
	case !a.IsValid(), !b.IsValid(), a == b:
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a.IsUnspecified() || b.IsUnspecified()
}
