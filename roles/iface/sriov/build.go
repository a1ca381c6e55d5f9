package sriov

import (
	"cmp"
	"errors"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Build computes the spec and the result of one attachment. The VF is
// configured before it is moved, and DEL restores its settings after it is
// back, so the container never sends without them.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	f, ok := in.Observed.(function)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	mac, err := in.Args.MAC(r.conf.RuntimeConfig.MAC, r.conf.MAC)
	if err != nil {
		return nil, err
	}
	own := &roles.ResultInterface{Name: in.Key.IfName, Mac: cmp.Or(mac, f.MAC), Mtu: f.MTU, Sandbox: in.Netns}
	res := in.Result(r.conf.DNS, []*roles.ResultInterface{own}, 0)
	w := &attach.Desired{Result: res, MAC: own.Mac, Claims: f.device().Claims()}
	w.Spec.Add(r.conf.vf(&f, mac))
	if f.Userspace {
		return w, nil
	}
	if in.Prev != nil {
		w.Spec.Add(&netops.Link{In: netops.Container, Name: in.Key.IfName, MAC: attach.ContainerMAC(in.Prev, in.Key.IfName)})
	} else {
		w.Spec.Add(&netops.Move{
			From: netops.Host, Name: f.Link, To: netops.Container, As: in.Key.IfName,
			Alias: attachment.DeviceAlias(in.Key, f.Link), NameOnly: true,
		})
	}
	return w, attach.Container{MTU: f.MTU}.AddTo(&w.Spec, in, res)
}

// vf is what the card must do for the VF.
func (c *Conf) vf(f *function, mac string) *netops.VF {
	v := &netops.VF{
		Link: f.PF, Number: f.Number, Device: f.Address, MAC: mac,
		SpoofCheck: onOff(c.SpoofChk), Trust: onOff(c.Trust), LinkState: c.LinkState,
	}
	if c.VLAN != nil {
		v.VLAN = &netops.VFVLAN{ID: *c.VLAN, QoS: value(c.VLANQoS), Outer: c.VLANProto != nil && strings.EqualFold(*c.VLANProto, proto8021AD)}
	}
	if c.MinTxRate != nil || c.MaxTxRate != nil {
		v.Rate = &netops.VFRate{Min: uint32(value(c.MinTxRate)), Max: uint32(value(c.MaxTxRate))}
	}
	return v
}

// onOff is "on", "off", or "" for a key that is not set.
func onOff(value string) string {
	if value != "" && value != on {
		return off
	}
	return value
}
