package ovs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Role is the ovs role's entry in the table.
func Role() roles.Role {
	r := attach.InterfaceRole(roles.Role{
		Names:        []string{"ovs"},
		Summary:      "a veth pair on a bridge of Open vSwitch, with VLANs",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC", "OvnPort", "K8S_POD_UID"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
	r.New, r.Undo = withFile(r.New), withFile(r.Undo)
	return r
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: cnibox does not change the bridge.
func (r *role) Shared() []string { return nil }

// observed is what Build needs beside the configuration.
type observed struct {
	// OverLink means that the addresses are not known when the interface is made.
	OverLink bool
}

// Observe asks whether the IPAM plugin needs the interface.
func (r *role) Observe(_ context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	in.Observed = observed{OverLink: r.conf.IPAM.Type != "" && h.Delegate.OverLink(r.conf.IPAM.Type)}
	return nil
}

// containerIndex is the index of the container's interface in the result. The
// host's end comes before it.
const containerIndex = 1

// Build computes the spec and the result of one attachment. The container's interface comes up
// when Open vSwitch forwards its packets, or its announcements would be lost.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	port, err := r.port(in)
	if err != nil {
		return nil, err
	}
	mac, err := r.conf.mac(in.Args)
	if err != nil {
		return nil, err
	}
	ifaces := []*roles.ResultInterface{
		{Name: in.HostLink, Mac: in.HostMAC},
		{Name: in.Key.IfName, Sandbox: in.Netns},
	}
	res := in.Result(r.conf.DNS, ifaces, containerIndex)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	switch {
	case mac == "" && len(ips) > 0 && !o.OverLink:
		mac = macOf(ips[0].Address.Addr())
	case mac == "":
		mac = in.ContainerMAC
	}
	if in.Prev != nil {
		mac = in.ContainerMAC
	}
	ifaces[containerIndex].Mac = mac
	pair := attach.Veth.Pair(in, r.conf.MTU, ips)
	pair.Up, pair.Peer.MAC = true, mac
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: mac}
	w.Spec.Add(pair)
	attach.AddNoLinkLocal(&w.Spec, netops.Host, in)
	w.Spec.Add(port)
	return w, attach.Container{MTU: r.conf.MTU}.AddTo(&w.Spec, in, res)
}

// macOf returns the MAC that ovs-cni gives an interface with an address. Other hosts that have
// cached the address of an earlier container then have its MAC, too.
func macOf(a netip.Addr) string {
	tail := a.AsSlice()
	if !a.Is4() {
		sum := sha256.Sum256([]byte(a.String()))
		tail = sum[:]
	}
	return net.HardwareAddr(append([]byte{0x0a, 0x58}, tail[:4]...)).String()
}

// External IDs of a port and of its interface in the database, as ovs-cni writes them.
const (
	idNetns   = "contNetns"
	idIfName  = "contIface"
	idPodUID  = "contPodUid"
	idOwner   = "owner"
	idOVNPort = "iface-id"
)

// port returns the port of an attachment.
func (r *role) port(in *attach.Input) (*netops.OVSPort, error) {
	bridge, err := r.conf.bridge(in.Args)
	if err != nil {
		return nil, err
	}
	p := &netops.OVSPort{
		Socket: r.conf.SocketFile, Bridge: bridge, Link: in.HostLink, Owner: in.Label, Trunks: r.conf.trunks(),
		Type: r.conf.InterfaceType, OFPort: r.conf.OFPortRequest, Wait: r.conf.wait(),
		PortIDs: map[string]string{idNetns: in.Netns, idIfName: in.Key.IfName, idPodUID: in.Args.Get("K8S_POD_UID")},
	}
	if len(p.Trunks) == 0 {
		p.Tag = r.conf.VLAN
	}
	if id := r.conf.ovnPort(in.Args); id != "" {
		p.InterfaceIDs = map[string]string{idOVNPort: id}
	}
	return p, nil
}

// Orphans are the pair and its port.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Name: in.HostLink, Kind: attach.Veth.Kind(), Alias: in.Label},
		&netops.OVSPort{Socket: r.conf.SocketFile, Link: in.HostLink, Owner: in.Label, Uncertain: true},
	}}
}

// RemoveStrays removes the ports of containers that have neither a record nor a link: a reboot ends
// both, and Open vSwitch's database keeps the port.
func (r *role) RemoveStrays(ctx context.Context, h *roles.Host) error {
	strays, err := h.Net.StrayOVSPorts(ctx, r.conf.SocketFile, attachment.LabelPrefix)
	if errors.Is(err, netops.ErrNotExist) {
		return nil // Open vSwitch does not run
	}
	if err != nil || len(strays) == 0 {
		return err
	}
	known, err := store.Read(ctx, h.Store, func(tx *store.Tx) (map[string]bool, error) {
		atts, err := tx.Attachments("")
		return recovery.Known(atts), err
	})
	if err != nil {
		return err
	}
	var objects []netops.Object
	for _, p := range strays {
		if !known[p.Owner] {
			h.Log.Info("removing the port of a container that is gone", "object", p.String())
			objects = append(objects, p)
		}
	}
	return h.Net.Undo(ctx, attachment.Inverses(objects), nil)
}

// Status reports whether Open vSwitch's database server answers and has the bridge. Without the key it is that of containers with an ovnPort.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if err := h.Net.OVSBridge(ctx, r.conf.SocketFile, cmp.Or(r.conf.Bridge, ovnBridge)); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}
