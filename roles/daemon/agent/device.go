package agent

import (
	"bytes"
	"context"
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
	// vxlanOverhead4 and vxlanOverhead6 are what a tunnel adds to a packet: outer
	// IPv4 or IPv6, UDP, VXLAN and the inner Ethernet header.
	vxlanOverhead4 = 20 + 8 + 8 + 14
	vxlanOverhead6 = 40 + 8 + 8 + 14
	// leastMTU4 and leastMTU6 are what the protocols ask of a link (RFC 791, RFC 8200).
	leastMTU4 = 68
	leastMTU6 = 1280
	// longestLink is IFNAMSIZ without the end.
	longestLink = 15
)

// deviceName is flannel's name of the VXLAN device, cut short where that would
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

// podMTU is the MTU of pods of one family: the underlay's, or the configured one
// if that is less, without what the tunnel adds.
func podMTU(config *cluster.Config, underlay int, v6 bool) (int, error) {
	mtu, of := underlay, "the interface's"
	if m := config.Backend.MTU; m > 0 && m < mtu {
		mtu, of = m, "the configured"
	}
	left := mtu
	if config.Backend.Type == backendVXLAN {
		if left -= vxlanOverhead4; v6 {
			left = mtu - vxlanOverhead6
		}
	}
	if least := map[bool]int{false: leastMTU4, true: leastMTU6}[v6]; left < least {
		return 0, fmt.Errorf("%s MTU of %d leaves %d bytes for pods' %s packets, they need %d", of, mtu, left, familyName(v6), least)
	}
	return left, nil
}

// vtepMAC is the address of one family's VTEP: the remembered one, else that of
// the device that another program left, else that of this node's record, else a
// new one. Peers have it in their neighbour tables: it must stay.
func (a *agent) vtepMAC(ctx context.Context, v6 bool) string {
	device := deviceName(a.config.Backend.VNI, v6)
	if mac, ok := a.macs[device]; ok {
		return mac
	}
	mac := a.memory.load(ctx).MACs[device]
	switch twin := a.twin(mac, v6); {
	case twin != nil:
		return a.changeMAC(ctx, device, twin)
	case isUnicast(mac):
		a.macs[device] = mac
	default:
		a.keepMAC(ctx, device, a.formerMAC(device, v6))
	}
	return a.macs[device]
}

// keepMAC makes an address a device's, and remembers it.
func (a *agent) keepMAC(ctx context.Context, device, mac string) {
	a.macs[device] = mac
	a.memory.save(ctx, func(r *remembered) {
		if r.MACs == nil {
			r.MACs = map[string]string{}
		}
		r.MACs[device] = mac
	})
}

// changeMAC gives a device a new address, since another node has the one it had.
func (a *agent) changeMAC(ctx context.Context, device string, twin *cluster.Node) string {
	mac := newMAC()
	a.log.Warn("another node has this one's VTEP address: it gets a new one", "node", twin.Name, "mac", mac)
	a.keepMAC(ctx, device, mac)
	return mac
}

// twin is another node that has an address of this one's, nil if there is none: the
// state of one was copied to the other. A record with this node's public address
// is its own, of a former name.
func (a *agent) twin(mac string, v6 bool) *cluster.Node {
	for i := range a.snapshot.Nodes {
		n := &a.snapshot.Nodes[i]
		data, public, own := n.BackendData, n.PublicIP, a.underlay.public4
		if v6 {
			data, public, own = n.BackendV6Data, n.PublicIPv6, a.underlay.public6
		}
		if mac == "" || !bytes.Contains(data, []byte(mac)) || n.Name == a.engine.node || public == own {
			continue
		}
		if v, err := cluster.ParseVTEP(data); err == nil && v.Is(a.config.Backend.VNI) && v.MAC.String() == mac {
			return n
		}
	}
	return nil
}

// yield gives up a VTEP's address that another node turns out to have: copies of one
// machine that started at the same moment saw nothing of each other. Of the two it is
// the node with the higher public address.
func (a *agent) yield(ctx context.Context) {
	if a.own == nil || a.compared == a.snapshot || a.config.Backend.Type != backendVXLAN {
		return
	}
	a.compared = a.snapshot
	for _, v6 := range []bool{false, true} {
		device := deviceName(a.config.Backend.VNI, v6)
		twin := a.twin(a.macs[device], v6)
		if twin == nil {
			continue
		}
		public, own := twin.PublicIP, a.underlay.public4
		if v6 {
			public, own = twin.PublicIPv6, a.underlay.public6
		}
		if own.Compare(public) > 0 {
			a.changeMAC(ctx, device, twin)
		}
	}
}

// formerMAC is what other programs know as the address of the node's VTEP, or a
// new one.
func (a *agent) formerMAC(device string, v6 bool) string {
	if i := slices.IndexFunc(a.links, func(l netops.HostLink) bool { return l.Name == device && l.Kind == "vxlan" }); i >= 0 && isUnicast(a.links[i].MAC) {
		return a.links[i].MAC
	}
	if n := a.listed(); n != nil {
		data := n.BackendData
		if v6 {
			data = n.BackendV6Data
		}
		if v, err := cluster.ParseVTEP(data); err == nil && v.Is(a.config.Backend.VNI) {
			return v.MAC.String()
		}
	}
	return newMAC()
}

// newMAC is a random address, locally administered (IEEE 802).
func newMAC() string {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // it never fails
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// hardware is an address in the form of package cluster.
func hardware(s string) net.HardwareAddr {
	mac, _ := net.ParseMAC(s) // it was made or judged here
	return mac
}

func isUnicast(s string) bool {
	mac, err := net.ParseMAC(s)
	return err == nil && len(mac) == 6 && mac[0]&1 == 0 && slices.ContainsFunc(mac, func(b byte) bool { return b != 0 })
}

// listed is this node's record in the registry, nil if there is none. etcd knows
// nodes by the keys of their leases, and so a former one by its address.
func (a *agent) listed() *cluster.Node {
	if a.snapshot == nil {
		return nil
	}
	find := func(is func(*cluster.Node) bool) *cluster.Node {
		for i := range a.snapshot.Nodes {
			if n := &a.snapshot.Nodes[i]; is(n) {
				return n
			}
		}
		return nil
	}
	if a.own != nil {
		return find(func(n *cluster.Node) bool { return n.Name == a.own.Name })
	}
	if n := find(func(n *cluster.Node) bool { return n.Name == a.engine.node }); n != nil || !a.engine.anonymous {
		return n
	}
	u := a.underlay
	return find(func(n *cluster.Node) bool {
		return u.public4.IsValid() && n.PublicIP == u.public4 || u.public6.IsValid() && n.PublicIPv6 == u.public6
	})
}

// vtep is one family's device.
func (a *agent) vtep(subnet, network netip.Prefix, mtu int, mac string) *overlay.VTEP {
	v6 := subnet.Addr().Is6()
	b := &a.config.Backend
	v := &overlay.VTEP{
		Name: deviceName(b.VNI, v6), VNI: b.VNI, Port: b.Port, Parent: a.underlay.link, Local: a.underlay.local4,
		MAC: mac, MTU: mtu, Learning: b.Learning, GBP: b.GBP,
		Address: netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()), Network: network,
	}
	if v6 {
		v.Local = a.underlay.local6
	}
	return v
}
