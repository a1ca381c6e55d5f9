package azurevnet

import (
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// hostMAC is the MAC of every host's end in the transparent modes. Azure's plugin uses
// the same.
const hostMAC = "aa:aa:aa:aa:aa:aa"

// transparent is the veth pair of the mode "transparent". The container's
// gateway is a virtual address that no interface has.
func transparent(mtu int) attach.Routed {
	return attach.Routed{
		Gateway4: netip.AddrFrom4([4]byte{169, 254, 1, 1}),
		Gateway6: netip.MustParseAddr("fe80::1234:5678:9abc"),
		HostMAC:  hostMAC, MTU: mtu,
	}
}

// buildTransparent routes the container's packets and leaves the master
// unchanged.
func (r *role) buildTransparent(in *attach.Input, o observed) (*attach.Desired, error) {
	pair := transparent(r.mtu(o))
	res := in.Result(r.conf.dns(), []*roles.ResultInterface{
		{Name: in.HostLink, Mac: hostMAC},
		{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns},
	}, 1)
	pair.Result(res)
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: in.ContainerMAC}
	return w, pair.AddTo(&w.Spec, in, res)
}
