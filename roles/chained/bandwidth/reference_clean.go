package bandwidth

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/store"
)

// referencePrefix is the start of the names of the reference plugin's ifb
// interfaces.
const referencePrefix = "bwp"

// referenceIFB is the name that the reference plugin (v1.9.1) gives its ifb
// interface. The name does not depend on the container's interface: attachments
// of one container to one network have the same.
func referenceIFB(key store.Key) string {
	sum := sha512.Sum512([]byte(key.Network + key.ContainerID))
	return referencePrefix + hex.EncodeToString(sum[:6])
}

// CleanReference removes the limits and our ifb interface of an attachment without a
// record, and the reference plugin's ifb interface. Everything else is removed
// with the container's interface.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	own := ifb(in)
	var left netops.Spec
	left.Add(own)
	if container != nil {
		end, err := h.Net.HostEnd(ctx, container, in.Key.IfName)
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return err
		}
		if err == nil {
			left.Add(
				&netops.Qdisc{In: netops.Host, Link: end.Name, Kind: "tbf"},
				&netops.Redirect{In: netops.Host, Link: end.Name, To: own.Name},
			)
		}
	}
	theirs := referenceIFB(in.Key)
	used, err := used(ctx, h, in, container, theirs)
	if err == nil && !used {
		left.Add(&netops.Link{In: netops.Host, Name: theirs, Kind: "ifb"})
	}
	return errors.Join(err, h.Net.Remove(ctx, left, nil))
}

// used reports whether an ifb interface serves another interface of the
// container than the attachment's. It is false without a namespace: all of the
// container's attachments have ended then.
func used(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace, name string) (bool, error) {
	_, err := h.Net.Link(ctx, nil, name)
	if errors.Is(err, netops.ErrNotExist) || container == nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	links, err := h.Net.Links(ctx, container)
	if err != nil {
		return false, err
	}
	for _, l := range links {
		if l.Name == in.Key.IfName || !l.IsPairEnd() {
			continue
		}
		to, err := redirectTargets(ctx, h, container, l.Name)
		if err != nil || slices.Contains(to, name) {
			return true, err
		}
	}
	return false, nil
}

// redirectTargets are the interfaces to which the packets of a container's
// interface are redirected.
func redirectTargets(ctx context.Context, h *roles.Host, container *netops.Namespace, link string) ([]string, error) {
	end, err := h.Net.HostEnd(ctx, container, link)
	if err == nil {
		var to []string
		if to, err = h.Net.Redirects(ctx, nil, end.Name); err == nil {
			return to, nil
		}
	}
	if errors.Is(err, netops.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// CheckReference changes nothing: Build already expects the reference plugin's ifb
// interface if prevResult lists it.
func (r *role) CheckReference(context.Context, *roles.Host, *attach.Input, *netops.Spec) ([]netops.Difference, error) {
	return nil, nil
}

// CollectReference removes the reference plugin's ifb interfaces of containers
// that no longer exist. Their names are hashes, so it computes the names for
// the containers that host-local's files list for the network.
func (r *role) CollectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, l := range links {
		if l.Kind == "ifb" && strings.HasPrefix(l.Name, referencePrefix) {
			there[l.Name] = true
		}
	}
	if len(there) == 0 {
		return nil
	}
	for _, v := range req.Valid {
		delete(there, referenceIFB(store.Key{Network: req.Network, ContainerID: v.ContainerID}))
	}
	gone, err := h.Reference.Departed(ctx, h, req.Network, req.Valid)
	if err != nil {
		return err
	}
	var left netops.Spec
	for _, f := range gone {
		name := referenceIFB(store.Key{Network: req.Network, ContainerID: f.ContainerID})
		if there[name] {
			delete(there, name)
			left.Add(&netops.Link{In: netops.Host, Name: name, Kind: "ifb"})
		}
	}
	return h.Net.Remove(ctx, left, nil)
}
