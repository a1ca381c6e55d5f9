package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/migrate"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
)

// Masquerader is an Interface that can masquerade. The reference plugin of its
// name makes rules of its own for that, which are removed with the containers
// that it attached.
type Masquerader interface {
	Masquerade() Masquerade
}

// Successor is a Chained that knows what the reference plugin of its name makes,
// beside its being an Heir.
type Successor interface {
	// CheckForeign makes of what CHECK wants what it can want of an attachment
	// that the reference made, and lists what of that is missing.
	CheckForeign(ctx context.Context, h *roles.Host, in *Input, spec *netops.Spec) ([]netops.Difference, error)
	// CollectForeign is GC's part: it removes what the reference made for
	// containers that are not valid, as far as that tells whose it is.
	CollectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error
}

// inherited is the interface of an attachment that the reference plugin of the
// role's name made.
type inherited struct {
	// in is the container's namespace; nil where only the host side was found.
	in   *netops.Namespace
	link netops.LinkInfo
	// opened tells that in is to be closed.
	opened bool
}

func (i *inherited) close() {
	if i.opened {
		_ = i.in.Close()
	}
}

// inherit removes what the reference plugin of the role's name made for an
// attachment without a record. An interface is the attachment's if it has no
// label, and the MAC of prevResult or an address that is the attachment's.
func (a *Handler) inherit(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	_, masquerades := a.role.(Masquerader)
	if masquerades {
		key := req.Key()
		var err error
		if masquerades, err = h.Net.HasForeign(ctx, netops.Foreign{Network: key.Network, ContainerID: key.ContainerID}); err != nil {
			return err
		}
	}
	found, err := a.candidate(ctx, h, req, ns)
	if err != nil || found == nil && !masquerades {
		return err
	}
	if found != nil {
		defer found.close()
	}
	f, err := migrate.ReferenceAttachment(ctx, h, req.Key(), req.PrevResult)
	if err != nil {
		return err
	}
	var errs []error
	if masquerades {
		errs = append(errs, h.Net.RemoveForeignMasquerade(ctx, f))
	}
	if found != nil {
		errs = append(errs, a.removeInherited(ctx, h, req, f, found))
	}
	return errors.Join(errs...)
}

// candidate is the interface that may be the attachment's: in the namespace
// that is given or else in that of prevResult, or without one what prevResult
// names on the host. nil for none.
func (a *Handler) candidate(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) (*inherited, error) {
	found := &inherited{in: ns}
	if ns == nil {
		if found.in = openSandbox(h, req); found.in == nil {
			return hostEnd(ctx, h, req)
		}
		found.opened = true
	}
	var err error
	found.link, err = h.Net.Link(ctx, found.in, req.IfName)
	if err == nil && !record.Labelled(found.link) && a.isOfKind(req, found.link) {
		return found, nil
	}
	found.close()
	if errors.Is(err, netops.ErrNotExist) {
		err = nil
	}
	return nil, err
}

// openSandbox opens the namespace that prevResult names; nil if there is none,
// or if by now it is the host's.
func openSandbox(h *roles.Host, req *roles.Request) *netops.Namespace {
	i := containerInterface(req)
	if i == nil {
		return nil
	}
	ns, err := h.Net.OpenNamespace(i.Sandbox)
	if err != nil {
		return nil
	}
	if host, err := h.Net.IsHost(ns); err != nil || host {
		_ = ns.Close()
		return nil
	}
	return ns
}

// containerInterface is what prevResult says of the container's interface, or nil.
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

// hostEnd is the host's end of a pair that prevResult names, by the names that
// the reference gives: "veth" and 8 digits. nil for none.
func hostEnd(ctx context.Context, h *roles.Host, req *roles.Request) (*inherited, error) {
	if req.PrevResult == nil {
		return nil, nil
	}
	for _, i := range req.PrevResult.Interfaces {
		digits, ok := strings.CutPrefix(i.Name, record.HostLinkPrefix)
		if !ok || i.Sandbox != "" || len(digits) != 8 {
			continue
		}
		l, err := h.Net.Link(ctx, nil, i.Name)
		if err == nil && l.Kind == "veth" && !record.Labelled(l) && l.MAC == i.Mac {
			return &inherited{link: l}, nil
		}
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return nil, err
		}
	}
	return nil, nil
}

// isOfKind tells whether the role makes interfaces of the link's kind, or moves
// devices: the reference notes their names on the host as aliases.
func (a *Handler) isOfKind(req *roles.Request, l netops.LinkInfo) bool {
	for _, o := range a.stray(req).Objects {
		switch o := o.(type) {
		case *netops.Link:
			return o.Kind == l.Kind
		case *netops.Move:
			return roles.LinkName(l.Alias) == nil
		}
	}
	return false
}

// removeInherited deletes the interface, or brings a device back, if it is the
// attachment's.
func (a *Handler) removeInherited(ctx context.Context, h *roles.Host, req *roles.Request, f netops.Foreign, found *inherited) error {
	if found.in == nil {
		return h.Net.Remove(ctx, netops.Spec{Objects: []netops.Object{
			&netops.Link{In: netops.Host, Name: found.link.Name, Kind: found.link.Kind, Alias: found.link.Alias},
		}}, nil)
	}
	mine, err := isInherited(ctx, h, req, f, found)
	if err != nil || !mine {
		return err
	}
	h.Log.Info("removing an interface of the reference plugin", "network", req.Network, "container", req.ContainerID, "ifname", req.IfName)
	var made netops.Object = &netops.Link{In: netops.Container, Name: req.IfName, Kind: found.link.Kind, Alias: found.link.Alias}
	for _, o := range a.stray(req).Objects {
		if _, moves := o.(*netops.Move); moves {
			made = &netops.Move{
				From: netops.Host, Name: found.link.Alias, To: netops.Container, As: req.IfName,
				Alias: found.link.Alias, Kind: found.link.Kind, MAC: found.link.MAC,
			}
		}
	}
	return h.Net.Remove(ctx, netops.Spec{Objects: []netops.Object{made}}, found.in)
}

// isInherited tells whether the interface in the container is the attachment's.
func isInherited(ctx context.Context, h *roles.Host, req *roles.Request, f netops.Foreign, found *inherited) (bool, error) {
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

// collectForeign removes the rules of containers that are gone, of those that
// the reference plugin of the role's name attached.
func (a *Handler) collectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if _, ok := a.role.(Masquerader); !ok {
		return nil
	}
	return h.Net.CollectForeignMasquerade(ctx, req.Network, ForeignOf(req))
}

// collectForeign does so for the reference plugin of a chained role's name.
func (c *ChainedHandler) collectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if s, ok := c.role.(Successor); ok {
		return s.CollectForeign(ctx, h, req)
	}
	return nil
}

// checkForeign is checkForeign for a chained role: nothing is altered where the
// role or the attachment is none of that kind.
func (c *ChainedHandler) checkForeign(ctx context.Context, h *roles.Host, in *Input, ns *netops.Namespace, spec *netops.Spec) ([]netops.Difference, error) {
	s, ok := c.role.(Successor)
	if !ok {
		return nil, nil
	}
	rec, err := recovery.Attachment(ctx, h, in.Key)
	if err != nil || rec != nil {
		return nil, err
	}
	foreign, err := isForeign(ctx, h, in, ns)
	if err != nil || !foreign {
		return nil, err
	}
	return s.CheckForeign(ctx, h, in, spec)
}

// ForeignOf is GC's list of valid attachments, as the reference plugins know them.
func ForeignOf(req *roles.Request) []netops.Foreign {
	out := make([]netops.Foreign, len(req.Valid))
	for i, v := range req.Valid {
		out[i] = netops.Foreign{Network: req.Network, ContainerID: v.ContainerID, IfName: v.IfName}
	}
	return out
}

// checkForeign makes of what CHECK wants what it can want of an attachment that
// the reference plugin of the role's name made: without our labels, and with
// rules of the reference's own in place of our elements.
func (a *Handler) checkForeign(ctx context.Context, h *roles.Host, in *Input, spec *netops.Spec) ([]netops.Difference, error) {
	var kept []netops.Object
	for _, o := range spec.Objects {
		switch o := o.(type) {
		case *netops.Element:
			continue
		case *netops.Link:
			own := *o
			own.Alias = ""
			kept = append(kept, &own)
		default:
			kept = append(kept, o)
		}
	}
	spec.Objects = kept
	m, ok := a.role.(Masquerader)
	if !ok || !m.Masquerade().On {
		return nil, nil
	}
	f, err := migrate.ReferenceAttachment(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	missing, err := h.Net.MissingForeignMasquerade(ctx, f)
	var diffs []netops.Difference
	for _, addr := range missing {
		diffs = append(diffs, UnlikeAddress(in, addr, "masqueraded"))
	}
	return diffs, err
}

// UnlikeAddress is the difference that an address of the container is not what
// the reference made it: "masqueraded".
func UnlikeAddress(in *Input, a netip.Addr, what string) netops.Difference {
	return netops.Difference{
		Object: &netops.Addr{In: netops.Container, Link: in.Key.IfName, Address: netip.PrefixFrom(a, a.BitLen())},
		Want:   what, Have: "not " + what,
	}
}

// isForeign tells whether an attachment without a record is one that the
// reference plugin made. The host's end of its pair, if it has one, is the input's then.
func isForeign(ctx context.Context, h *roles.Host, in *Input, ns *netops.Namespace) (bool, error) {
	ours := func(i *roles.ResultInterface) bool { return i.Name == in.HostLink }
	if slices.ContainsFunc(in.Prev.Interfaces, ours) {
		return false, nil
	}
	l, err := h.Net.Link(ctx, ns, in.Key.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return false, nil // CHECK says so itself
	}
	if err != nil || record.Labelled(l) {
		return false, err
	}
	if l.Kind != "veth" {
		return true, nil
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("look for the host's end of %q: %w", in.Key.IfName, err)
	}
	for _, end := range links {
		if end.Index == l.PeerIndex && end.PeerIndex == l.Index && end.Kind == "veth" {
			in.HostLink = end.Name
		}
	}
	return true, nil
}
