package ovs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

const (
	// referenceOwner marks the ports of ovs-cni. cnibox's have another mark, so neither removes the
	// other's ports.
	referenceOwner = "ovs-cni.network.kubevirt.io"
	// referenceCache is where ovs-cni stores the configurations of its containers.
	referenceCache = "/var/lib/cni/ovs-cni/cache"
)

// CleanReference removes the port of a container that ovs-cni attached, and what ovs-cni stored of it.
// The port is found by the namespace and the interface that it names, or by the host's end in
// prevResult.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	links := map[string]bool{}
	if in.Netns != "" {
		p, err := h.Net.OVSPortOf(ctx, r.conf.SocketFile, map[string]string{idNetns: in.Netns, idIfName: in.Key.IfName, idOwner: referenceOwner})
		if errors.Is(err, netops.ErrNotExist) {
			return nil // Open vSwitch does not run
		}
		if err != nil {
			return err
		}
		if p != nil {
			links[p.Link] = true
		}
	}
	if in.Prev != nil {
		for _, i := range in.Prev.Interfaces {
			if i.Sandbox == "" && i.Name != in.HostLink && roles.LinkName(i.Name) == nil {
				links[i.Name] = true
			}
		}
	}
	var spec netops.Spec
	for name := range links {
		spec.Add(&netops.OVSPort{Socket: r.conf.SocketFile, Link: name, Owner: referenceOwner, Uncertain: true})
	}
	if err := h.Net.Remove(ctx, spec, nil); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(referenceCache, in.Key.ContainerID+"-"+in.Key.IfName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Log.Warn("remove what ovs-cni stored of a container", "error", err)
	}
	return nil
}
