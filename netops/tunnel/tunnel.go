// Package tunnel reads the tunnels of the host to other nodes and finds what keeps their datagrams away.
package tunnel

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Device is a VXLAN or WireGuard device of the host, which sends packets to other nodes in UDP datagrams.
type Device struct {
	Name, Kind string
	MTU        int
	// Port is the UDP port on which it receives.
	Port uint16
	// Local is the address from which a VXLAN device sends, or invalid if the route decides. Parent is the link
	// by which it sends, or "".
	Local  netip.Addr
	Parent string
	// Peers are the addresses to which it sends.
	Peers []netip.AddrPort
}

// List reads the tunnels of the host.
func List(ctx context.Context, n *netops.Net) ([]Device, error) {
	c, err := n.Rtnetlink()
	if err != nil {
		return nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, l := range links {
		t := Device{Name: l.Name, Kind: l.Kind, MTU: l.MTU}
		switch l.Kind {
		case rtnl.KindVXLAN:
			t.Port, t.Local = uint16(l.VXLAN.Port), l.VXLAN.Local
			if i := slices.IndexFunc(links, func(parent *rtnl.Link) bool { return l.HasParentHere() && parent.Index == l.Peer }); i >= 0 {
				t.Parent = links[i].Name
			}
			entries, err := c.StaticNeighs(ctx, l.Index, unix.AF_BRIDGE)
			if err != nil {
				return nil, nlconn.Explain(err, "list entries of "+l.Name)
			}
			for _, e := range entries {
				if e.IP.IsValid() && !e.IP.IsUnspecified() && !e.IP.IsMulticast() {
					t.Peers = append(t.Peers, netip.AddrPortFrom(e.IP, t.Port))
				}
			}
		case rtnl.KindWireGuard:
			if err := t.readWireGuard(ctx, l.Index); err != nil {
				return nil, nlconn.Explain(err, "read WireGuard device "+l.Name)
			}
		default:
			continue
		}
		sorting.Func(t.Peers, netip.AddrPort.Compare)
		t.Peers = slices.Compact(t.Peers)
		all = append(all, t)
	}
	return all, nil
}

// readWireGuard reads the port and the peers of a WireGuard device.
func (t *Device) readWireGuard(ctx context.Context, link int) error {
	c, err := nlconn.Open(unix.NETLINK_GENERIC, "generic netlink")
	if err != nil {
		return err
	}
	family, err := c.Family(ctx, rtnl.KindWireGuard)
	if err == nil {
		const version = 1 // WG_GENL_VERSION
		m := nlconn.NewGeneric(family, unix.WG_CMD_GET_DEVICE, version)
		m.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
		err = c.Dump(ctx, m, func() { t.Peers = nil }, func(_ uint16, data []byte) error { return t.parseWireGuard(data) })
	}
	return errors.Join(err, c.Close())
}

// parseWireGuard reads one message of WG_CMD_GET_DEVICE. A peer with many networks takes several messages, and
// has its endpoint in the first.
func (t *Device) parseWireGuard(b []byte) error {
	return nlconn.EachAttr(b[min(nlconn.GenericHeader, len(b)):], func(kind uint16, v []byte) error {
		switch kind {
		case unix.WGDEVICE_A_LISTEN_PORT:
			t.Port = uint16(nlconn.Short(v))
		case unix.WGDEVICE_A_PEERS:
			return nlconn.EachAttr(v, func(_ uint16, v []byte) error {
				endpoint, err := nlconn.Find(v, unix.WGPEER_A_ENDPOINT)
				if a := rtnl.ParseSockaddr(endpoint); a.IsValid() {
					t.Peers = append(t.Peers, a)
				}
				return err
			})
		}
		return nil
	})
}
