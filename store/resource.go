package store

import (
	"net/netip"
	"strconv"
	"strings"
)

// Resource is something of this node that one attachment can have until DEL: an interface, a container's
// address that is used by rules of the node, or ports.
type Resource struct {
	Kind string
	// Name is empty if Ports is set.
	Name string
	// Ports is set for KindPort.
	Ports Ports
}

// KindPort is the kind of resources that are Ports.
const KindPort = "port"

// KindAwaited is the kind of resources that stand for ports which another attachment of the same container has.
const KindAwaited = "awaited port"

// Awaited returns a resource of KindAwaited. Its owner gets a claim on the ports when the other attachment
// releases them; see Tx.HandOver.
func Awaited(p Ports, owner Key) Resource {
	return Resource{Kind: KindAwaited, Name: awaitedPrefix(owner) + owner.Network + " " + owner.IfName + " " + p.name()}
}

func awaitedPrefix(owner Key) string { return owner.ContainerID + " " }

// Ports are consecutive ports of this node, of one protocol and address family.
type Ports struct {
	First, Last uint16
	Protocol    string
	// Family is "IPv4" or "IPv6".
	Family string
	// Address is the node's address. The zero Addr means all addresses of the family.
	Address netip.Addr
}

// Resource returns what is claimed.
func (c *Claim) Resource() Resource {
	if p, ok := parsePorts(c.Name); ok && c.Kind == KindPort {
		return Resource{Kind: c.Kind, Ports: p}
	}
	return Resource{Kind: c.Kind, Name: c.Name}
}

// String describes the resource to people: "link eth1", "port 8080/tcp of IPv4" or "port 8000-8100/udp of 192.0.2.1".
func (r Resource) String() string {
	if r.Ports == (Ports{}) {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Ports.String()
}

// name returns the text under which a claim on the resource is stored. Programs of several versions
// work on one file, so it must not change.
func (r Resource) name() string {
	if r.Ports == (Ports{}) {
		return r.Name
	}
	return r.Ports.name()
}

// rangePrefix begins the texts of several ports, so that they are adjacent in the bucket.
const rangePrefix = "range "

// String describes the ports to people: "8080/tcp of IPv4" or "8000-8100/udp of 192.0.2.1".
func (p Ports) String() string {
	of := p.Family
	if p.Address.IsValid() {
		of = p.Address.String()
	}
	return p.Numbers() + "/" + p.Protocol + " of " + of
}

// name returns "8080/tcp/IPv4/" or "range 8000-8100/tcp/IPv4/192.0.2.1".
func (p Ports) name() string {
	text := p.Numbers() + "/" + p.Protocol + "/" + p.Family + "/"
	if p.First != p.Last {
		text = rangePrefix + text
	}
	if p.Address.IsValid() {
		text += p.Address.String()
	}
	return text
}

// Numbers returns "8080" or "8000-8100".
func (p Ports) Numbers() string {
	text := strconv.Itoa(int(p.First))
	if p.First != p.Last {
		text += "-" + strconv.Itoa(int(p.Last))
	}
	return text
}

// parsePorts is the inverse of name.
func parsePorts(text string) (p Ports, ok bool) {
	fields := strings.Split(strings.TrimPrefix(text, rangePrefix), "/")
	if len(fields) != 4 {
		return p, false
	}
	first, last, several := strings.Cut(fields[0], "-")
	if !several {
		last = first
	}
	lowest, lowErr := strconv.ParseUint(first, 10, 16)
	highest, highErr := strconv.ParseUint(last, 10, 16)
	p = Ports{First: uint16(lowest), Last: uint16(highest), Protocol: fields[1], Family: fields[2]}
	if fields[3] != "" {
		p.Address, _ = netip.ParseAddr(fields[3])
	}
	return p, lowErr == nil && highErr == nil && p.name() == text
}

// overlaps reports whether both have a port of an address.
func (p Ports) overlaps(o Ports) bool {
	sameAddress := p.Address == o.Address || !p.Address.IsValid() || !o.Address.IsValid()
	return p.First <= o.Last && o.First <= p.Last && p.Protocol == o.Protocol && p.Family == o.Family && sameAddress
}

// neighbours returns the prefixes of the texts of all ports that can overlap. A node has few claims on
// several ports, so one port is compared with all of them; several ports are compared with all claims.
func (p Ports) neighbours() []string {
	if p.First != p.Last {
		return []string{""}
	}
	return []string{rangePrefix, p.Numbers() + "/" + p.Protocol + "/" + p.Family + "/"}
}
