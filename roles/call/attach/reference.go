package attach

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
)

// Masquerader is an interface role that can masquerade. The reference plugin of its name
// makes rules of another form, which are removed together with the containers that the
// reference plugin attached.
type Masquerader interface {
	Masquerade() Masquerade
}

// ReferenceCleaner is a role that can find its objects of an attachment without a record. For an interface role these are only
// the objects beside the interface.
// They were made by an ADD before the state was lost, or by the reference plugin. An ADD
// without changes also leaves no record, so the search must be fast if it finds no
// objects.
type ReferenceCleaner interface {
	// CleanReference is called by DEL, of a Chained while Wants is true. It removes the attachment's
	// objects, and none of other attachments. An absent object is not an error. The
	// container is nil if it does not exist or is unknown, or if the interface in it is
	// recorded as another attachment's.
	CleanReference(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error
}

// ReferenceChecker is a ReferenceCleaner that also answers CHECK and GC for attachments of the
// reference plugin of its name.
type ReferenceChecker interface {
	// CheckReference removes from spec the objects that the reference plugin does not make.
	// It returns the missing objects of those that only the reference plugin makes.
	CheckReference(ctx context.Context, h *roles.Host, in *Input, spec *netops.Spec) ([]netops.Difference, error)
	// CollectReference is called by GC. It removes the reference plugin's objects of
	// containers that are not valid, if it can find the container of an object. It is
	// called only if h.Reference is not nil.
	CollectReference(ctx context.Context, h *roles.Host, req *roles.Request) error
}

// cleanReference removes the objects that the reference plugin of the role's name made for
// an attachment without a record.
func (a *Handler) cleanReference(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	if h.Reference == nil {
		return nil
	}
	if c, ok := a.role.(ReferenceCleaner); ok {
		in := a.newInput(req)
		in.Prev = req.PrevResult
		if err := c.CleanReference(ctx, h, in, ns); err != nil {
			return err
		}
	}
	_, masquerades := a.role.(Masquerader)
	return h.Reference.RemoveInterface(ctx, h, req, ns, a.orphans(req), masquerades)
}

// collectReference removes the masquerade rules of the reference plugin of the role's name
// for containers that are not valid.
func (a *Handler) collectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if _, ok := a.role.(Masquerader); !ok || h.Reference == nil {
		return nil
	}
	return h.Reference.CollectMasquerade(ctx, h, req)
}

// checkReference does what ReferenceChecker.CheckReference does, for an interface role.
func (a *Handler) checkReference(ctx context.Context, h *roles.Host, req *roles.Request, spec *netops.Spec) ([]netops.Difference, error) {
	m, ok := a.role.(Masquerader)
	return h.Reference.CheckInterface(ctx, h, req, spec, ok && m.Masquerade().On)
}

// madeByReference reports whether the reference plugin made an attachment without a record. It
// sets in.HostLink to the host's end of the attachment's veth pair, if it has one.
func madeByReference(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace) (bool, error) {
	if h.Reference == nil {
		return false, nil
	}
	end, is, err := h.Reference.IsAttached(ctx, h, req, ns, in.HostLink)
	in.HostLink = cmp.Or(end, in.HostLink)
	return is, err
}

// collectReference calls the role's CollectReference, if it has one.
func (c *ChainedHandler) collectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if s, ok := c.role.(ReferenceChecker); ok && h.Reference != nil {
		return s.CollectReference(ctx, h, req)
	}
	return nil
}

// checkReference calls the role's CheckReference if the reference plugin of its name extended the
// attachment, because another program made it.
func (c *ChainedHandler) checkReference(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace, spec *netops.Spec) ([]netops.Difference, error) {
	s, ok := c.role.(ReferenceChecker)
	if !ok {
		return nil, nil
	}
	rec, err := recovery.Attachment(ctx, h, in.Key)
	if err != nil || rec != nil && !rec.Imported {
		return nil, err
	}
	byReference, err := madeByReference(ctx, h, req, in, ns)
	if err != nil || !byReference {
		return nil, err
	}
	return s.CheckReference(ctx, h, in, spec)
}
