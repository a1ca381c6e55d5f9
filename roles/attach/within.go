package attach

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Within is the desired state of an interface that is in the container's namespace
// only, and of the container's side. Its name and label follow from the attachment.
func Within(in *Input, own netops.Link, dns types.DNS) (*Desired, error) {
	own.In, own.Name, own.Alias = netops.Container, in.Key.IfName, in.Label
	res := in.Result(dns, []*roles.ResultInterface{{Name: own.Name, Mac: own.MAC, Sandbox: in.Netns}}, 0)
	w := &Desired{Result: res, MAC: own.MAC}
	w.Spec.Add(&own)
	return w, Container{MTU: own.MTU}.AddTo(&w.Spec, in, res)
}

// OrphansWithin is what Within can leave behind, for OrphanFinder.
func OrphansWithin(in *Input, kind string) netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Container, Name: in.Key.IfName, Kind: kind, Alias: in.Label},
	}}
}
