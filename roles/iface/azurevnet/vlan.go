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
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// vlanSpace is the namespace that a VLAN's containers share: on one side the VLAN,
// on the other a veth pair to each container, as in azure's mode transparent-vlan.
// Of two VLANs the containers may have the same addresses.
type vlanSpace struct {
	// Name is the namespace's below netops.NamespaceDir, Link the VLAN's in it.
	Name, Link string
	ID         int
	Master     master
}

// spaceOf is a VLAN's namespace with azure's names, as far as they fit.
func spaceOf(id int, m master) vlanSpace {
	n := strconv.Itoa(id)
	s := vlanSpace{Name: "az_ns_" + n, Link: m.Name + "_" + n, ID: id, Master: m}
	if roles.LinkName(s.Link) != nil {
		s.Link = "vlan" + n
	}
	return s
}

func (s *vlanSpace) place() netops.Place { return netops.Named(s.Name) }

// Where containers send what they send, and how the namespace tells what comes from
// where: all that the VLAN does not bring goes out by it, also from one container to
// the next, so that the rules of the cloud's network apply to it.
const (
	tableOut   = 2
	ruleRefuse = 100
	ruleIn     = 101
	ruleOwn    = 102
	ruleOut    = 103
)

// wireserver is Azure's address for what runs on a machine. Its port 80 has secrets
// of the machine's, port 53 is the DNS.
func wireserver() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{168, 63, 129, 16}), 32)
}

// wireVLAN puts the container behind its VLAN's namespace. The node itself has no
// part in it: no address, no route, no interface.
func (r *role) wireVLAN(in *attach.Input, o observed) (*attach.Desired, error) {
	space := spaceOf(r.conf.VLANID, o.Master)
	pair := transparent(r.mtu(o))
	pair.Place, pair.Gateway4 = space.place(), netip.AddrFrom4([4]byte{169, 254, 2, 1})
	res := in.Result(r.conf.dns(), []*roles.ResultInterface{{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns}}, 0)
	pair.Result(res)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, MAC: in.ContainerMAC}
	space.wire(&w.Spec)
	for _, is4 := range []bool{true, false} {
		for _, ip := range ips {
			if ip.Address.Addr().Is4() == is4 {
				space.wireFamily(&w.Spec, ip.Gateway)
				break
			}
		}
	}
	if err := pair.AddTo(&w.Spec, in, res); err != nil {
		return nil, err
	}
	// By this it is found again when the node's state is lost.
	w.Spec.Add(&netops.Link{In: netops.Container, Name: in.Key.IfName, Alias: in.Label})
	return w, nil
}

// wire is the namespace with the VLAN in it. It answers ARP for its containers,
// where the network outside asks. Loopback is up, for the kernel takes no address
// for a gateway's before it has one of its own.
func (s *vlanSpace) wire(spec *netops.Spec) {
	set := func(key, value string) {
		spec.Add(&netops.Sysctl{In: s.place(), Shared: true, Key: key, Value: value})
	}
	spec.Add(&netops.Netns{Name: s.Name, Alias: record.SharedAlias})
	// Answers come by another way than what they answer goes.
	set("net/ipv4/conf/all/rp_filter", "0")
	set("net/ipv4/conf/default/rp_filter", "0")
	spec.Add(
		&netops.Link{In: s.place(), Shared: true, Name: "lo", Up: true},
		&netops.Link{
			In: s.place(), Shared: true, Name: s.Link, Kind: "vlan", VLANID: s.ID, Up: true, Alias: record.SharedAlias,
			Parent: s.Master.Name, ParentIn: netops.Host,
		},
	)
	set("net/ipv4/conf/"+s.Link+"/proxy_arp", "1")
}

// wireFamily are the ways of one address family: what the VLAN brings goes to the
// containers, as do the namespace's own messages, which tell of what it refuses; all
// else goes out, by a gateway that has the hardware address of everybody.
func (s *vlanSpace) wireFamily(spec *netops.Spec, gateway netip.Addr) {
	family, all := unix.AF_INET, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if gateway.Is6() {
		family, all = unix.AF_INET6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		spec.Add(&netops.Sysctl{In: s.place(), Shared: true, Key: "net/ipv6/conf/" + s.Link + "/disable_ipv6", Value: "0"})
	} else {
		spec.Add(&netops.Rule{
			In: s.place(), Shared: true, Family: family, Priority: ruleRefuse, To: wireserver(),
			IPProto: unix.IPPROTO_TCP, DstPort: 80, Prohibit: true,
		})
	}
	spec.Add(
		&netops.Neigh{In: s.place(), Shared: true, Link: s.Link, IP: gateway, MAC: tunnelMAC},
		&netops.Route{In: s.place(), Shared: true, Link: s.Link, Dst: all, Via: gateway, OnLink: true, Table: tableOut},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleIn, IIF: s.Link, Table: unix.RT_TABLE_MAIN},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleOwn, IIF: "lo", Table: unix.RT_TABLE_MAIN},
		&netops.Rule{In: s.place(), Shared: true, Family: family, Priority: ruleOut, Table: tableOut},
	)
}

// fits tells whether the VLAN's namespace, if there is one, is of this master.
func (s *vlanSpace) fits(ctx context.Context, h *roles.Host) error {
	ns, err := h.Net.OpenNamespace(filepath.Join(netops.NamespaceDir, s.Name))
	if errors.Is(err, netops.ErrNoNetns) {
		return nil // there will be
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
			return fmt.Errorf("vlanId: namespace %q has %q for the VLAN, and not one of master %q: a number is one VLAN of one interface here: %w",
				s.Name, l.Name, s.Master.Name, netops.ErrConflict)
		}
	}
	return err
}

// Orphans is an attachment's pair, by the end that can be seen.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	if r.conf.Mode != modeVLAN {
		return netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Host, Name: in.HostLink, Kind: "veth", Alias: in.Label}}}
	}
	space := spaceOf(r.conf.VLANID, master{})
	s := attach.OrphansWithin(in, "veth")
	s.Add(&netops.Link{In: space.place(), Name: in.HostLink, Kind: "veth", Alias: in.Label})
	return s
}

// RemovableShared has the VLAN's namespace go with its last container: the one that is
// recorded too, whatever the configuration says by now.
func (r *role) RemovableShared() []netops.Object {
	if r.conf.Mode != modeVLAN {
		return nil
	}
	return []netops.Object{&netops.Netns{Name: spaceOf(r.conf.VLANID, master{}).Name, Alias: record.SharedAlias}}
}

// Status tells whether the kernel has VLANs, where they are wanted.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if r.conf.Mode != modeVLAN {
		return nil
	}
	return attach.KindStatus(ctx, h, "vlan")
}
