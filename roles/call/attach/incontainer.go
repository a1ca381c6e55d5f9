package attach

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// InContainer returns the desired state of an attachment without an object on the host:
// the interface in the container's namespace, its addresses and its routes. The
// interface's name and label follow from the attachment.
func InContainer(in *Input, own netops.Link, dns types.DNS) (*Desired, error) {
	own.In, own.Name, own.Alias = netops.Container, in.Key.IfName, in.Label
	res := in.Result(dns, []*roles.ResultInterface{{Name: own.Name, Mac: own.MAC, Sandbox: in.Netns}}, 0)
	w := &Desired{Result: res, MAC: own.MAC}
	w.Spec.Add(&own)
	return w, Container{MTU: own.MTU}.AddTo(&w.Spec, in, res)
}

// OrphansInContainer lists what InContainer's attachment can leave behind, for
// OrphanFinder.
func OrphansInContainer(in *Input, kind string) netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Container, Name: in.Key.IfName, Kind: kind, Alias: in.Label},
	}}
}
