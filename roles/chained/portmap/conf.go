// Package portmap is the CNI role "portmap": it forwards ports of the node to a
// container. It has the keys of the reference plugin.
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
	// Backend is "nftables" (default). "iptables" is accepted with a warning,
	// and nftables is used.
	Backend string `json:"backend,omitempty"`
	// SNAT masquerades those connections to a mapped port whose replies would
	// not pass through the node: connections from the container itself, from
	// its subnet, and from 127.0.0.0/8 and ::1. Default true.
	SNAT *bool `json:"snat,omitempty"`
	// MasqAll masquerades all connections to a mapped port, for containers
	// whose replies do not pass through the node. It requires snat.
	MasqAll bool `json:"masqAll,omitempty"`
	// MarkMasqBit is the bit of the packet mark, 0 to 31, that is set on
	// masqueraded connections. cnibox itself does not need the mark. Without
	// the key no bit is set.
	MarkMasqBit *int `json:"markMasqBit,omitempty"`
	// ExternalSetMarkChain is an iptables chain, such as KUBE-MARK-MASQ, that
	// marks packets for masquerading by another program. It is accepted with a
	// warning: cnibox masquerades with its own rules instead. It cannot be
	// combined with markMasqBit.
	ExternalSetMarkChain string `json:"externalSetMarkChain,omitempty"`
	// ConditionsV4 restrict the IPv4 connections that are forwarded to the
	// container: all conditions must match. They are arguments of iptables (-s and
	// -d with addresses or networks, separated by commas, or -i with a device; "!"
	// before it negates) or of nft (ip saddr, ip daddr, iifname with a value or a set
	// "{ a, b }"; "!=" negates).
	ConditionsV4 []string `json:"conditionsV4,omitempty"`
	// ConditionsV6 are the same for IPv6 (ip6 saddr, ip6 daddr).
	ConditionsV6 []string `json:"conditionsV6,omitempty"`
	// MaxPorts is the number of ports that a container can have, 1 to 65535. A
	// port counts once for each protocol and hostIP. Without the key there is no limit.
	MaxPorts int `json:"maxPorts,omitempty"`
	// RefuseListeners makes ADD refuse a port on which a process of the node listens at
	// all addresses or at hostIP. A process that listens at one other address keeps its
	// connections, and the container gets those to the rest. With false the container
	// gets the process's connections, except those to loopback addresses. Default true
	// for pods of Kubernetes, because the owner of a pod could take the kubelet's port,
	// and false for other containers, as with the reference plugin.
	RefuseListeners *bool `json:"refuseListeners,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// PortMappings are the ports to map. Without any the role does nothing.
		PortMappings []Mapping `json:"portMappings,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

// Mapping forwards one port or a range of ports of the node to the container.
type Mapping struct {
	// HostPort is the port of the node, 1 to 65535.
	HostPort int `json:"hostPort"`
	// ContainerPort is the port of the container, 1 to 65535.
	ContainerPort int `json:"containerPort"`
	// Protocol is "tcp" (default), "udp" or "sctp".
	Protocol string `json:"protocol,omitempty"`
	// HostIP is the node's address that the mapping applies to. Empty means all
	// addresses, "0.0.0.0" all IPv4 addresses, "::" all IPv6 addresses.
	HostIP string `json:"hostIP,omitempty"`
	// Range is the number of consecutive ports to map, starting at HostPort and
	// ContainerPort. 0 means one port.
	Range int `json:"range,omitempty"`

	// hostIP is the parsed HostIP. The zero Addr means all addresses.
	hostIP netip.Addr
}

const (
	maxMarkBit = 31
	maxPort    = math.MaxUint16
)

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	for i := range c.RuntimeConfig.PortMappings {
		m := &c.RuntimeConfig.PortMappings[i]
		m.Protocol = strings.ToLower(m.Protocol)
		if m.Protocol == "" {
			m.Protocol = "tcp"
		}
		m.Range = max(m.Range, 1)
		m.hostIP, _ = roles.ParseAddr(m.HostIP)
	}
}

// masquerades is the value of snat, or its default.
func (c *Conf) masquerades() bool { return c.SNAT == nil || *c.SNAT }

// refusesListeners is the value of refuseListeners, or its default.
func (c *Conf) refusesListeners(isPod bool) bool {
	if c.RefuseListeners != nil {
		return *c.RefuseListeners
	}
	return isPod
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.Backend != "" && c.Backend != "nftables" && c.Backend != "iptables" {
		f.Addf("backend", "%q is not known: use \"nftables\" or \"iptables\"", c.Backend)
	}
	if c.MaxPorts < 0 || c.MaxPorts > maxPort {
		f.Addf("maxPorts", "%d is not a number of ports: use 1 to %d", c.MaxPorts, maxPort)
	}
	if c.MarkMasqBit != nil {
		if *c.MarkMasqBit < 0 || *c.MarkMasqBit > maxMarkBit {
			f.Addf("markMasqBit", "%d is not a bit of a packet mark: use 0 to %d", *c.MarkMasqBit, maxMarkBit)
		}
		if c.ExternalSetMarkChain != "" {
			f.Addf("externalSetMarkChain", "cannot be combined with markMasqBit: choose one")
		}
	}
	_, err4 := conditionVerdict(false, c.ConditionsV4)
	_, err6 := conditionVerdict(true, c.ConditionsV6)
	f.Check("conditionsV4", err4)
	f.Check("conditionsV6", err6)
	for i, m := range c.RuntimeConfig.PortMappings {
		m.check(&f, fmt.Sprintf("runtimeConfig.portMappings[%d]", i))
	}
	if f.Err() == nil {
		c.checkDuplicates(&f)
	}
	return f.Err()
}

// checkCount refuses more ports than maxPorts. Only ADD calls it: a container that
// has its ports keeps them when maxPorts is reduced.
func (c *Conf) checkCount() error {
	count, counted := 0, map[Mapping]bool{}
	for _, m := range c.RuntimeConfig.PortMappings {
		if !counted[m] { // some runtimes repeat a mapping
			counted[m] = true
			count += m.Range
		}
	}
	if c.MaxPorts == 0 || count <= c.MaxPorts {
		return nil
	}
	return &roles.ConfError{
		Path: "runtimeConfig.portMappings", Reason: fmt.Sprintf("the container asks for %d ports, and portmap's key maxPorts allows %d: publish fewer ports, or raise maxPorts", count, c.MaxPorts),
	}
}

// check reports the errors of one mapping. path is its JSON path.
func (m Mapping) check(f *roles.Faults, path string) {
	for _, p := range []struct {
		key  string
		port int
	}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
		switch {
		case p.port < 1 || p.port > maxPort:
			f.Addf(path+"."+p.key, "%d is not a port: use 1 to %d", p.port, maxPort)
		case p.port > maxPort-m.Range+1:
			f.Addf(path+".range", "%d ports from %s %d exceed port %d", m.Range, p.key, p.port, maxPort)
		}
	}
	if m.Protocol != "tcp" && m.Protocol != "udp" && m.Protocol != "sctp" {
		f.Addf(path+".protocol", "%q is not known: use \"tcp\", \"udp\" or \"sctp\"", m.Protocol)
	}
	if m.HostIP != "" && !m.hostIP.IsValid() {
		f.Addf(path+".hostIP", "%q is not an IP address: use an address of the node, or remove it to use all", m.HostIP)
	}
}

// checkDuplicates reports host ports that two mappings forward to different
// container ports. Two equal mappings are not an error: some runtimes repeat a
// mapping for each container of a pod.
func (c *Conf) checkDuplicates(f *roles.Faults) {
	if len(c.RuntimeConfig.PortMappings) < 2 {
		return // one mapping has no duplicate ports
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
		reported := false
		for n := range m.Range {
			at := hostPort{m.Protocol, m.HostPort + n}
			current := use{i, m.ContainerPort + n, m.hostIP}
			for _, u := range used[at] {
				if u.target != current.target && overlap(u.ip, current.ip) && !reported {
					f.Addf(fmt.Sprintf("runtimeConfig.portMappings[%d].hostPort", i), "%d/%s is already mapped by portMappings[%d] to another port of the container", at.port, at.protocol, u.mapping)
					reported = true
				}
			}
			used[at] = append(used[at], current)
		}
	}
}

// overlap reports whether a connection can match both addresses.
func overlap(a, b netip.Addr) bool {
	switch {
	case !a.IsValid(), !b.IsValid(), a == b:
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a.IsUnspecified() || b.IsUnspecified()
}
