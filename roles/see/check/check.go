// Package check finds faults of a node's network. Each function judges one object, or a pair of objects, by a view: doctor calls it for
// all objects of the node, and path for those that the packet meets. So both name a fault with the same words and the same fix.
package check

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/view"
)

// Fault is what is wrong with an object.
type Fault struct {
	// Object is what is faulty, and Text says how, in a sentence.
	Object, Text string
	// Fix is a command that mends it, or "" if none is known.
	Fix string
}

// forwardingKeys are the settings without which the host forwards no packets of a family that arrive at a link. The first one is the
// node's, which also sets those of links.
func forwardingKeys(link string, is6 bool) []string {
	if is6 {
		return []string{"net/ipv6/conf/all/forwarding"}
	}
	return []string{"net/ipv4/ip_forward", "net/ipv4/conf/" + link + "/forwarding"}
}

// Forwarding judges the settings of a link whose packets the host forwards.
func Forwarding(v *view.Host, link string, is6 bool) (*Fault, error) {
	for i, key := range forwardingKeys(link, is6) {
		value, err := v.Sysctl(key)
		if err != nil || value != "0" {
			if err != nil {
				return nil, err
			}
			continue
		}
		text := "this node does not forward packets: /proc/sys/" + key + " is 0"
		if i > 0 {
			text = "this node does not forward packets from " + link + ": /proc/sys/" + key + " is 0"
		}
		return &Fault{key, text, "sysctl -w " + key + "=1"}, nil
	}
	return nil, nil
}

// Up judges a link that must carry packets. isOurs means that cnibox made it.
func Up(v *view.Namespace, l *netops.LinkInfo, isOurs bool) *Fault {
	f := &Fault{Object: l.Name}
	switch {
	case !l.Up:
		f.Text, f.Fix = l.Name+" of "+v.Name+" is down", v.Enter+"ip link set "+l.Name+" up"
		if isOurs {
			f.Fix = "cnibox repair"
		}
	case !l.Running:
		if other, err := v.HostEnd(l.Name); err == nil && !other.Up {
			return &Fault{other.Name, other.Name + " of " + view.HostName + " is down", "cnibox repair"}
		}
		f.Text = l.Name + " of " + v.Name + " has no carrier: its other end is down or gone"
		if v.IsHost() && !isOurs {
			f.Fix = "check the cable of " + l.Name + " and the port of the switch"
		}
	default:
		return nil
	}
	return f
}

// Port judges a port of a bridge.
func Port(v *view.Host, l *netops.LinkInfo) (*Fault, error) {
	if !l.Blocked {
		return nil, nil
	}
	bridge, err := v.Link(l.Master)
	if err != nil {
		return nil, err
	}
	f := &Fault{Object: l.Name, Text: "the bridge " + l.Master + " passes no frames of its port " + l.Name}
	if bridge.STP {
		f.Text += ": its STP blocks it, or has yet to open it"
		return f, nil
	}
	f.Text, f.Fix = f.Text+", whose state is not forwarding", "bridge link set dev "+l.Name+" state 3"
	return f, nil
}

// StaticEntry judges the entries of a bridge for the MAC of a pod that is at one of its ports.
func StaticEntry(v *view.Host, port *netops.LinkInfo, mac, pod string) (*Fault, error) {
	if port.Master == "" {
		return nil, nil
	}
	all, err := v.BridgeEntries()
	for _, e := range all {
		if e.MAC != mac || e.Link == port.Index {
			continue
		}
		other, err := v.LinkAt(e.Link)
		if err != nil {
			return nil, err
		}
		if other != nil && (other.Master == port.Master || other.Name == port.Master) {
			return &Fault{other.Name, "a static entry of " + port.Master + " for " + mac + " leads to " + other.Name + ", and " + pod + " is at " + port.Name, e.Fix(other.Name, other.Name == port.Master)}, nil
		}
	}
	return nil, err
}

// Entry judges the entry for an address on a link, whose MACs are known. The kernel asks again unless a program made it.
func Entry(v *view.Namespace, link string, a netip.Addr, macs []string) (*Fault, error) {
	n, err := v.Neighbour(link, a)
	if err != nil || !n.Permanent || len(macs) == 0 || slices.Contains(macs, n.MAC) {
		return nil, err
	}
	return &Fault{
		"neighbour " + a.String() + " dev " + link,
		"the entry of " + v.Name + " for " + a.String() + " on " + link + " has the MAC " + n.MAC + ", and " + a.String() + " has " + macs[0],
		v.Enter + "ip neigh replace " + a.String() + " lladdr " + macs[0] + " nud reachable dev " + link,
	}, nil
}

// Silent judges the entry for an address to which packets must go on a link: nobody answered the last requests.
func Silent(v *view.Namespace, link string, a netip.Addr) (*Fault, error) {
	n, err := v.Neighbour(link, a)
	if err != nil || !n.Failed && !n.Asked {
		return nil, err
	}
	return &Fault{Object: link, Text: a.String() + " does not answer to " + v.Name + " on " + link + " (ARP or neighbour discovery)"}, nil
}

// IPv6 judges the settings without which a container has no address of IPv6.
func IPv6(v *view.Namespace, ifName string) (*Fault, error) {
	for _, of := range []string{ifName, "all"} {
		key := "net/ipv6/conf/" + of + "/disable_ipv6"
		value, err := v.Sysctl(key)
		if err != nil {
			return nil, err
		}
		if value == "1" {
			return &Fault{"sysctl " + key, "IPv6 is disabled in " + v.Name + ": /proc/sys/" + key + " is 1", v.Enter + "sysctl -w " + key + "=0 && cnibox repair"}, nil
		}
	}
	return nil, nil
}

// NoNeighbour is the fault of a VXLAN device that does not know the MAC of another node's device.
func NoNeighbour(device string, a netip.Addr) string {
	return "no neighbour " + a.String() + " on " + device
}

// NoForwarding is the fault of one that does not know the node of a MAC.
func NoForwarding(device, mac string) string {
	return "no forwarding entry for " + mac + " on " + device
}
