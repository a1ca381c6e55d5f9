package agent

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

const (
	// vxlanOverhead4 and vxlanOverhead6 are the bytes that a tunnel adds to a packet: outer IPv4 or
	// IPv6, UDP, VXLAN and the inner Ethernet header.
	vxlanOverhead4 = 20 + 8 + 8 + 14
	vxlanOverhead6 = 40 + 8 + 8 + 14
	// leastMTU4 and leastMTU6 are the smallest MTU of a link (RFC 791, RFC 8200).
	leastMTU4 = 68
	leastMTU6 = 1280
	// longestLink is IFNAMSIZ without the terminating zero byte.
	longestLink = 15
)

// deviceName returns flannel's name of the VXLAN device. It uses a shorter prefix if the name would
// be too long for the kernel.
func deviceName(vni uint32, v6 bool) string {
	prefix, short := "flannel.", "fl."
	if v6 {
		prefix, short = "flannel-v6.", "fl6."
	}
	if name := fmt.Sprintf("%s%d", prefix, vni); len(name) <= longestLink {
		return name
	}
	return fmt.Sprintf("%s%d", short, vni)
}

// podMTU returns the MTU of pods of one family: the smaller of the underlay's and the configured
// one, minus the tunnel's overhead.
func podMTU(config *cluster.Config, underlay int, v6 bool) (int, error) {
	mtu, of := underlay, "the interface's"
	if m := config.Backend.MTU; m > 0 && m < mtu {
		mtu, of = m, "the configured"
	}
	left := mtu
	switch {
	case config.Backend.Type == backendWireGuard:
		left -= wireGuardOverhead(config, v6)
	case config.Backend.Type == backendVXLAN && v6:
		left -= vxlanOverhead6
	case config.Backend.Type == backendVXLAN:
		left -= vxlanOverhead4
	}
	if least := map[bool]int{false: leastMTU4, true: leastMTU6}[v6]; left < least {
		return 0, fmt.Errorf("%s MTU of %d leaves %d bytes for pods' %s packets, they need %d", of, mtu, left, familyName(v6), least)
	}
	return left, nil
}

// macChoice is a new MAC address of a device. other is the node that has the former one, if that is the reason.
type macChoice struct {
	device, mac string
	other       *cluster.Node
}

// needsMAC reports whether the MAC address of a family's VTEP is not chosen yet.
func (k *knowledge) needsMAC(v6 bool) bool {
	return k.enabled(v6) && k.config.Backend.Type == backendVXLAN && k.macs[deviceName(k.config.Backend.VNI, v6)] == ""
}

// chooseMAC chooses the MAC address of one family's VTEP, if it is not chosen yet. Sources, in this order: the saved
// address, the existing device, this node's record, a new random address. The address must stay the
// same, because peers have it in their neighbour tables.
func (k *knowledge) chooseMAC(v6 bool) (all []macChoice) {
	if !k.needsMAC(v6) || k.underlay.link == "" {
		return nil
	}
	device := deviceName(k.config.Backend.VNI, v6)
	mac := k.savedMACs[device]
	switch other := k.nodeWithSameMAC(mac, v6); {
	case other != nil:
		return k.setMAC(device, k.spareMAC(v6), other)
	case isUnicast(mac):
		k.setMAC(device, mac, nil)
		return nil // it is saved
	}
	mac = k.formerMAC(device, v6)
	if mac == "" {
		mac = k.spareMAC(v6)
	}
	return k.setMAC(device, mac, nil)
}

// setMAC sets the MAC address of a device. It returns what is to be saved.
func (k *knowledge) setMAC(device, mac string, other *cluster.Node) []macChoice {
	all := map[string]string{device: mac}
	for name, mac := range k.macs {
		if name != device {
			all[name] = mac
		}
	}
	k.macs = all
	return []macChoice{{device, mac, other}}
}

// spareMAC takes the random MAC address for a family.
func (k *knowledge) spareMAC(v6 bool) (mac string) {
	spare := &k.spareMACs[0]
	if v6 {
		spare = &k.spareMACs[1]
	}
	mac, *spare = *spare, ""
	return mac
}

// nodeWithSameMAC returns another node whose VTEP has this node's MAC address, or nil. That happens
// when the state of one node was copied to the other. Skipped are this node's own record, whatever its address
// is, and a record with this node's public address, which is of this node under a former name.
func (k *knowledge) nodeWithSameMAC(mac string, v6 bool) *cluster.Node {
	for _, n := range k.snapshot.Nodes {
		public, data := n.Family(v6)
		_, own := k.underlay.family(v6)
		if mac == "" || !bytes.Contains(data, []byte(mac)) || k.isOwn(n) || public == own {
			continue
		}
		if v, err := cluster.ParseVTEP(data); err == nil && v.Is(k.config.Backend.VNI) && v.MAC.String() == mac {
			return n
		}
	}
	return nil
}

// resolveMACConflict changes the MAC address of a VTEP if another node has the same one. Copies of
// one machine that start at the same moment do not see each other's records. The node with the
// higher public address changes its MAC.
func (k *knowledge) resolveMACConflict() (all []macChoice) {
	if k.own == nil || k.macChecked == k.snapshot || k.config.Backend.Type != backendVXLAN {
		return nil
	}
	k.macChecked = k.snapshot
	for _, v6 := range []bool{false, true} {
		device := deviceName(k.config.Backend.VNI, v6)
		other := k.nodeWithSameMAC(k.macs[device], v6)
		if other == nil {
			continue
		}
		public, _ := other.Family(v6)
		_, own := k.underlay.family(v6)
		if own.Compare(public) > 0 {
			all = append(all, k.setMAC(device, k.spareMAC(v6), other)...)
		}
	}
	return all
}

// formerMAC returns the VTEP's MAC address that other programs know, or "".
func (k *knowledge) formerMAC(device string, v6 bool) string {
	if i := slices.IndexFunc(k.links, func(l netops.HostLink) bool { return l.Name == device && l.Kind == "vxlan" }); i >= 0 && isUnicast(k.links[i].MAC) {
		return k.links[i].MAC
	}
	if n := k.ownRecord(); n != nil {
		_, data := n.Family(v6)
		if v, err := cluster.ParseVTEP(data); err == nil && v.Is(k.config.Backend.VNI) {
			return v.MAC.String()
		}
	}
	return ""
}

// newMAC returns a random, locally administered MAC address (IEEE 802).
func newMAC() string {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // crypto/rand.Read never returns an error
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// parseMAC parses a MAC address that is known to be valid.
func parseMAC(s string) net.HardwareAddr {
	mac, _ := net.ParseMAC(s) // the agent made or checked it
	return mac
}

func isUnicast(s string) bool {
	mac, err := net.ParseMAC(s)
	return err == nil && len(mac) == 6 && mac[0]&1 == 0 && slices.ContainsFunc(mac, func(b byte) bool { return b != 0 })
}

// isOwn reports whether a record is this node's. In etcd a record has no node's name, except in its author.
func (k *knowledge) isOwn(n *cluster.Node) bool {
	return n.Name == k.self.node || k.own != nil && n.Name == k.own.Name || k.self.anonymous && k.self.owner.Related(n.Author)
}

// ownRecord returns this node's record in the registry, or nil. In etcd a record without an author is found by its public
// address.
func (k *knowledge) ownRecord() *cluster.Node {
	if k.snapshot == nil {
		return nil
	}
	find := func(is func(*cluster.Node) bool) *cluster.Node {
		if i := slices.IndexFunc(k.snapshot.Nodes, is); i >= 0 {
			return k.snapshot.Nodes[i]
		}
		return nil
	}
	if k.own != nil {
		return find(func(n *cluster.Node) bool { return n.Name == k.own.Name })
	}
	if n := find(k.isOwn); n != nil || !k.self.anonymous {
		return n
	}
	u := k.underlay
	return find(func(n *cluster.Node) bool {
		return u.public4.IsValid() && n.PublicIP == u.public4 || u.public6.IsValid() && n.PublicIPv6 == u.public6
	})
}

// vtep returns one family's tunnel device, or nil for host-gw.
func (k *knowledge) vtep(subnet, network netip.Prefix, mtu int) *overlay.VTEP {
	v6 := subnet.Addr().Is6()
	b := &k.config.Backend
	v := &overlay.VTEP{MTU: mtu, Address: netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()), Network: network}
	switch b.Type {
	case backendHostGW:
		return nil
	case backendWireGuard:
		of := deviceFamily(k.config, v6)
		v.Name, v.Port, v.WireGuard = wireGuardDevice(of), listenPort(b, of), k.wireGuardSettings(v6)
		return v
	}
	v.Name, v.VNI, v.Port, v.Learning, v.GBP = deviceName(b.VNI, v6), b.VNI, b.VXLANPort(), b.Learning, b.GBP
	v.TxChecksum = b.TxChecksum
	v.Parent, v.MAC = k.underlay.link, k.macs[v.Name]
	v.Local, _ = k.underlay.family(v6)
	return v
}
