// Package migrate takes over from the reference plugins: it finds, checks and removes
// the attachments that they left on a node.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/leftovers"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/store"
)

// ReferencePlugins implements roles.ReferencePlugins.
type ReferencePlugins struct{}

var _ roles.ReferencePlugins = ReferencePlugins{}

// referenceInterface is the interface of an attachment that the reference plugin made.
type referenceInterface struct {
	// in is the container's namespace; nil if only the host's end was found.
	in   *netops.Namespace
	link netops.LinkInfo
	// opened means that in has to be closed.
	opened bool
}

func (i *referenceInterface) close() {
	if i.opened {
		_ = i.in.Close()
	}
}

// RemoveInterface removes the interface that the reference plugin of an interface role
// made for an attachment without a record, and, with masquerades, its rules. own contains
// the objects that the role itself would make, by names and labels. An interface belongs
// to the attachment if it has no label, and has the MAC of prevResult or one of the
// attachment's addresses.
func (ReferencePlugins) RemoveInterface(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace, own netops.Spec, masquerades bool) error {
	if masquerades {
		var err error
		if masquerades, err = leftovers.Of(h.Net).Has(ctx, netops.ReferencePluginAttachment{Network: req.Network, ContainerID: req.ContainerID}); err != nil {
			return err
		}
	}
	found, err := findInterface(ctx, h, req, ns, own)
	if err != nil || found == nil && !masquerades {
		return err
	}
	if found != nil {
		defer found.close()
	}
	f, err := attachment.ByReference(ctx, h, req.Key(), req.PrevResult)
	if err != nil {
		return err
	}
	var errs []error
	if masquerades {
		errs = append(errs, leftovers.Of(h.Net).RemoveMasquerade(ctx, f))
	}
	if found != nil {
		errs = append(errs, removeInterface(ctx, h, req, f, found, own))
	}
	return errors.Join(errs...)
}

// findInterface finds the interface that may belong to the attachment. It looks in ns, or
// else in the namespace of prevResult. Without a namespace it looks for the host's end
// that prevResult names. It returns nil if there is none.
func findInterface(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace, own netops.Spec) (*referenceInterface, error) {
	found := &referenceInterface{in: ns}
	if ns == nil {
		var err error
		found.in, err = openSandbox(h, req)
		if err != nil {
			return nil, err
		}
		if found.in == nil {
			return hostEnd(ctx, h, req)
		}
		found.opened = true
	}
	var err error
	found.link, err = h.Net.Link(ctx, found.in, req.IfName)
	if err == nil && !attachment.Labelled(found.link) && isOfKind(own, found.link) {
		var anothers bool
		anothers, err = attachment.IsAnothers(ctx, h, req.Key(), found.in)
		if err == nil && !anothers {
			return found, nil
		}
	}
	found.close()
	if errors.Is(err, netops.ErrNotExist) {
		err = nil
	}
	return nil, err
}

// openSandbox opens the namespace that prevResult names. It returns nil if it does not
// exist, or if the path now is the host's namespace.
func openSandbox(h *roles.Host, req *roles.Request) (*netops.Namespace, error) {
	i := containerInterface(req)
	if i == nil {
		return nil, nil
	}
	ns, err := attachment.OpenIfPresent(h, i.Sandbox)
	if ns == nil {
		return nil, err
	}
	if host, err := h.Net.IsHost(ns); err != nil || host {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// containerInterface returns the container's interface in prevResult, or nil.
func containerInterface(req *roles.Request) *roles.ResultInterface {
	if req.PrevResult == nil {
		return nil
	}
	at := slices.IndexFunc(req.PrevResult.Interfaces, func(i *roles.ResultInterface) bool { return i.Name == req.IfName && i.Sandbox != "" })
	if at < 0 {
		return nil
	}
	return req.PrevResult.Interfaces[at]
}

// hostEnd returns the host's end of a veth pair that prevResult names with a name of the
// reference's form, "veth" and 8 digits. It returns nil if there is none.
func hostEnd(ctx context.Context, h *roles.Host, req *roles.Request) (*referenceInterface, error) {
	if req.PrevResult == nil {
		return nil, nil
	}
	for _, i := range req.PrevResult.Interfaces {
		digits, ok := strings.CutPrefix(i.Name, attachment.HostLinkPrefix)
		if !ok || i.Sandbox != "" || len(digits) != 8 {
			continue
		}
		l, err := h.Net.Link(ctx, nil, i.Name)
		if err == nil && l.Kind == "veth" && !attachment.Labelled(l) && l.MAC == i.Mac {
			return &referenceInterface{link: l}, nil
		}
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return nil, err
		}
	}
	return nil, nil
}

// isOfKind reports whether own contains links of l's kind. A role that moves devices
// accepts links with an alias, because the reference stores the device's name on the host
// there.
func isOfKind(own netops.Spec, l netops.LinkInfo) bool {
	for _, o := range own.Objects {
		switch o := o.(type) {
		case *netops.Link:
			return o.Kind == l.Kind
		case *netops.Move:
			if o.As == l.Name { // the others are links of a bond
				return roles.LinkName(l.Alias) == nil
			}
		}
	}
	return false
}

// removeInterface deletes the interface, or returns a device to the host, if it
// belongs to the attachment.
func removeInterface(ctx context.Context, h *roles.Host, req *roles.Request, f netops.ReferencePluginAttachment, found *referenceInterface, own netops.Spec) error {
	if found.in == nil {
		return h.Net.Remove(ctx, netops.Spec{Objects: []netops.Object{
			&netops.Link{In: netops.Host, Name: found.link.Name, Kind: found.link.Kind, Alias: found.link.Alias},
		}}, nil)
	}
	belongs, err := belongsTo(ctx, h, req, f, found)
	if err != nil || !belongs {
		return err
	}
	h.Log.Info("removing an interface of the reference plugin", "network", req.Network, "container", req.ContainerID, "ifname", req.IfName)
	var made netops.Object = &netops.Link{In: netops.Container, Name: req.IfName, Kind: found.link.Kind, Alias: found.link.Alias}
	for _, o := range own.Objects {
		if m, moves := o.(*netops.Move); moves && m.As == req.IfName {
			made = &netops.Move{
				From: netops.Host, Name: found.link.Alias, To: netops.Container, As: req.IfName,
				Alias: found.link.Alias, Kind: found.link.Kind, MAC: found.link.MAC,
			}
		}
	}
	return h.Net.Remove(ctx, netops.Spec{Objects: []netops.Object{made}}, found.in)
}

// belongsTo reports whether the interface in the container belongs to the attachment.
func belongsTo(ctx context.Context, h *roles.Host, req *roles.Request, f netops.ReferencePluginAttachment, found *referenceInterface) (bool, error) {
	if i := containerInterface(req); i != nil && i.Mac != "" && strings.EqualFold(i.Mac, found.link.MAC) {
		return true, nil
	}
	addrs, err := h.Net.Addresses(ctx, found.in, req.IfName)
	for _, p := range addrs {
		if slices.Contains(f.Addresses, p.Addr()) {
			return true, err
		}
	}
	return false, err
}

// CheckInterface reduces the wanted objects of CHECK to those that the reference plugin of
// an interface role makes: without our labels, and without our elements, which the
// reference plugin replaces with rules. With masquerades it lists the addresses without
// such rules.
func (ReferencePlugins) CheckInterface(ctx context.Context, h *roles.Host, req *roles.Request, spec *netops.Spec, masquerades bool) ([]netops.Difference, error) {
	var kept []netops.Object
	for _, o := range spec.Objects {
		switch o := o.(type) {
		case *netops.Element:
			continue
		case *netops.Link:
			own := *o
			own.Alias = ""
			kept = append(kept, &own)
		case *netops.OVSPort:
			own := *o
			own.Owner = ""
			kept = append(kept, &own)
		default:
			kept = append(kept, o)
		}
	}
	spec.Objects = kept
	if !masquerades {
		return nil, nil
	}
	f, err := attachment.ByReference(ctx, h, req.Key(), req.PrevResult)
	if err != nil {
		return nil, err
	}
	missing, err := leftovers.Of(h.Net).MissingMasquerade(ctx, f)
	var diffs []netops.Difference
	for _, addr := range missing {
		diffs = append(diffs, leftovers.AddressDifference(req.IfName, addr, "masqueraded"))
	}
	return diffs, err
}

// IsAttached reports whether the reference plugin made an attachment without a record.
// end is the name of the host's end of its veth pair, if it has one.
func (ReferencePlugins) IsAttached(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace, hostLink string) (end string, is bool, err error) {
	ours := func(i *roles.ResultInterface) bool { return i.Name == hostLink }
	if slices.ContainsFunc(req.PrevResult.Interfaces, ours) {
		return "", false, nil
	}
	l, err := h.Net.Link(ctx, ns, req.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return "", false, nil // CHECK reports the absent interface
	}
	if err != nil || attachment.Labelled(l) {
		return "", false, err
	}
	if l.Kind != "veth" {
		return "", true, nil
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return "", false, fmt.Errorf("find the host's end of %q: %w", req.IfName, err)
	}
	for _, other := range links {
		if other.Index == l.PeerIndex && other.PeerIndex == l.Index && other.Kind == "veth" {
			end = other.Name
		}
	}
	return end, true, nil
}

// CollectMasquerade removes the masquerade rules of a network's containers that are not
// valid.
func (ReferencePlugins) CollectMasquerade(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return leftovers.Of(h.Net).CollectMasquerade(ctx, req.Network, attachment.ValidByReference(req))
}

// Mirror returns the Mirror of a transaction.
func (ReferencePlugins) Mirror(log *slog.Logger) store.Mirror { return &leasefiles.Mirror{Log: log} }
