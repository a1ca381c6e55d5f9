package hostdevice

import (
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Build computes the spec and the result of one attachment. A device with a
// userspace driver is only in the result; the program that uses it sets it up.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	dev, ok := in.Observed.(selected)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	own := &roles.ResultInterface{Name: in.Key.IfName, Mac: dev.MAC, Sandbox: in.Netns, PciID: dev.pciID()}
	res := in.Result(r.conf.DNS, []*roles.ResultInterface{own}, 0)
	w := &attach.Desired{Result: res, MAC: dev.MAC, Claims: dev.device().Claims()}
	switch {
	case dev.Userspace:
		return w, nil
	case in.Prev != nil:
		w.Spec.Add(&netops.Link{In: netops.Container, Name: in.Key.IfName, MAC: attach.ContainerMAC(in.Prev, in.Key.IfName)})
	default:
		w.Spec.Add(&netops.Move{
			From: netops.Host, Name: dev.Link, To: netops.Container, As: in.Key.IfName,
			Alias: attachment.DeviceAlias(in.Key, dev.Link), KeepNetwork: r.conf.UseInterfaceNetwork,
		})
	}
	dev.Network.addAddresses(res)
	if err := (attach.Container{MTU: dev.MTU}).AddTo(&w.Spec, in, res); err != nil {
		return nil, err
	}
	dev.Network.addRoutes(&w.Spec, in.Key.IfName, dev.Link, res)
	return w, nil
}
