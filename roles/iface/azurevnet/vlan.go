package azurevnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// vlanNetns is the network namespace that the containers of a VLAN share, as in
// azure's mode transparent-vlan. It holds the VLAN interface and the host's end
// of each container's veth pair. Containers of different VLANs may have the
// same addresses.
type vlanNetns struct {
	// Name is the namespace's file name in netops.NamespaceDir. Link is the
	// VLAN interface in it.
	Name, Link string
	ID         int
	Master     master
}

// vlanNetnsOf is a VLAN's namespace. Its names are azure's if they fit into an
// interface name.
func vlanNetnsOf(id int, m master) vlanNetns {
	n := strconv.Itoa(id)
	s := vlanNetns{Name: "az_ns_" + n, Link: m.Name + "_" + n, ID: id, Master: m}
	if roles.LinkName(s.Link) != nil {
		s.Link = "vlan" + n
	}
	return s
}

func (s *vlanNetns) place() netops.Place { return netops.Named(s.Name) }

// The routing table and the rule priorities of the namespace. Every packet that
// did not arrive through the VLAN leaves through the VLAN, also from one
// container to another, so that the rules of the cloud's network apply to it.
const (
	tableOut   = 2
	ruleRefuse = 100
	ruleIn     = 101
	ruleOwn    = 102
	ruleOut    = 103
)

// wireserver is Azure's address for services to the machine. Port 80 serves
// secrets of the machine; port 53 serves DNS.
func wireserver() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{168, 63, 129, 16}), 32)
}

// buildVLAN connects the container to its VLAN's namespace. The node's own
// namespace gets no address, route or interface.
func (r *role) buildVLAN(in *attach.Input, o observed) (*attach.Desired, error) {
	ns := vlanNetnsOf(r.conf.VLANID, o.Master)
	pair := transparent(r.mtu(o))
	pair.Place, pair.Gateway4 = ns.place(), netip.AddrFrom4([4]byte{169, 254, 2, 1})
	res := in.Result(r.conf.dns(), []*roles.ResultInterface{{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns}}, 0)
	pair.Result(res)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, MAC: in.ContainerMAC}
	ns.addTo(&w.Spec)
	for _, is4 := range []bool{true, false} {
		for _, ip := range ips {
			if ip.Address.Addr().Is4() == is4 {
				ns.addFamily(&w.Spec, ip.Gateway)
				break
			}
		}
	}
	if err := pair.AddTo(&w.Spec, in, res); err != nil {
		return nil, err
	}
	// The alias identifies the interface if the node's state is lost.
	w.Spec.Add(&netops.Link{In: netops.Container, Name: in.Key.IfName, Alias: in.Label})
	return w, nil
}

// addTo adds the namespace and the VLAN interface in it. The namespace answers
// the ARP requests of the cloud's network for its containers (proxy_arp).
// Loopback is up because the kernel accepts a gateway only after the namespace
// has an address.
func (s *vlanNetns) addTo(spec *netops.Spec) {
	set := func(key, value string) {
		spec.Add(&netops.Sysctl{In: s.place(), Shared: true, Key: key, Value: value})
	}
	spec.Add(&netops.Netns{Name: s.Name, Alias: attachment.SharedAlias})
	// Replies arrive through another interface than the one that rp_filter
	// expects.
	set("net/ipv4/conf/all/rp_filter", "0")
	set("net/ipv4/conf/default/rp_filter", "0")
	spec.Add(
		&netops.Link{In: s.place(), Shared: true, Name: "lo", Up: true},
		&netops.Link{
			In: s.place(), Shared: true, Name: s.Link, Kind: "vlan", VLANID: s.ID, Up: true, Alias: attachment.SharedAlias,
			Parent: s.Master.Name, ParentIn: netops.Host,
		},
	)
	set("net/ipv4/conf/"+s.Link+"/proxy_arp", "1")
}

// addFamily adds the routing of one address family. Packets from the VLAN go
// to the containers, and so do the namespace's own packets, such as ICMP errors
// for refused packets. All others leave through the VLAN, to a gateway that has
// the MAC of every host.
func (s *vlanNetns) addFamily(spec *netops.Spec, gateway netip.Addr) {
	family := netops.FamilyOf(gateway)
	if gateway.Is6() {
		spec.Add(&netops.Sysctl{In: s.place(), Shared: true, Key: "net/ipv6/conf/" + s.Link + "/disable_ipv6", Value: "0"})
	} else {
		spec.Add(&netops.Rule{
			In: s.place(), Shared: true, Family: family, Priority: ruleRefuse, To: wireserver(),
			IPProto: unix.IPPROTO_TCP, DstPort: 80, Prohibit: true,
		})
	}
	spec.Add(
		&netops.Neigh{In: s.place(), Shared: true, Link: s.Link, IP: gateway, MAC: tunnelMAC},
		&netops.Route{In: s.place(), Shared: true, Link: s.Link, Dst: roles.DefaultDst(gateway.Is4()), Via: gateway, OnLink: true, Table: tableOut},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleIn, IIF: s.Link, Table: unix.RT_TABLE_MAIN},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleOwn, IIF: "lo", Table: unix.RT_TABLE_MAIN},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleOut, Table: tableOut},
	)
}

// checkMaster returns an error if the VLAN's namespace exists with a VLAN of
// another master.
func (s *vlanNetns) checkMaster(ctx context.Context, h *roles.Host) error {
	ns, err := h.Net.OpenNamespace(filepath.Join(netops.NamespaceDir, s.Name))
	if errors.Is(err, netops.ErrNoNetns) {
		return nil // ADD will create it
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	if _, err := h.Net.Link(ctx, ns, s.Link); !errors.Is(err, netops.ErrNotExist) {
		return err
	}
	links, err := h.Net.Links(ctx, ns)
	for _, l := range links {
		if l.Kind == "vlan" {
			return fmt.Errorf("vlanId: namespace %q has the VLAN interface %q, and not one of master %q: a VLAN ID can be used with one master only: %w",
				s.Name, l.Name, s.Master.Name, netops.ErrConflict)
		}
	}
	return err
}

// Orphans is what an attachment without a record can have left: its veth pair,
// identified by the end that is accessible.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	if r.conf.Mode != modeVLAN {
		return netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Host, Name: in.HostLink, Kind: "veth", Alias: in.Label}}}
	}
	ns := vlanNetnsOf(r.conf.VLANID, master{})
	s := attach.OrphansInContainer(in, "veth")
	s.Add(&netops.Link{In: ns.place(), Name: in.HostLink, Kind: "veth", Alias: in.Label})
	return s
}

// RemovableShared is the VLAN's namespace: DEL of the VLAN's last container removes
// it.
func (r *role) RemovableShared() []netops.Object {
	if r.conf.Mode != modeVLAN {
		return nil
	}
	return []netops.Object{&netops.Netns{Name: vlanNetnsOf(r.conf.VLANID, master{}).Name, Alias: attachment.SharedAlias}}
}

// Status reports whether the kernel supports VLANs, if the mode needs them.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if r.conf.Mode != modeVLAN {
		return nil
	}
	return attach.KindStatus(ctx, h, "vlan")
}
