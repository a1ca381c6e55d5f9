package attach

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/migrate"
	"github.com/cnibox/cnibox/roles/recovery"
)

// Masquerader is an Interface that can masquerade. The reference plugin of its
// name makes rules of its own for that, which are removed with the containers
// that it attached.
type Masquerader interface {
	Masquerade() Masquerade
}

// Heir is a Chained that knows what is left of an attachment without a record
// of its part: by an ADD whose state was lost, or by the reference plugin. An ADD that
// wanted nothing has no part either, so it has to find quickly that there is nothing.
type Heir interface {
	// Inherit is called by DEL while Wants is true. It removes what is left, and
	// nothing of other attachments. An absent object is not an error. The container
	// is nil when it is gone or not known.
	Inherit(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error
}

// Successor is a Chained that knows what the reference plugin of its name makes,
// beside its being an Heir.
type Successor interface {
	// CheckForeign reduces what CHECK wants to what the reference makes for an
	// attachment, and lists what of that is missing.
	CheckForeign(ctx context.Context, h *roles.Host, in *Input, spec *netops.Spec) ([]netops.Difference, error)
	// CollectForeign is GC's part: it removes what the reference made for
	// containers that are not valid, as far as their owner can be found.
	CollectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error
}

// inherit removes what the reference plugin of the role's name made for an
// attachment without a record.
func (a *Handler) inherit(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	_, masquerades := a.role.(Masquerader)
	return migrate.CleanInterface(ctx, h, req, ns, a.stray(req), masquerades)
}

// collectForeign removes the rules of containers that are gone, which the
// reference plugin of the role's name attached.
func (a *Handler) collectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if _, ok := a.role.(Masquerader); !ok {
		return nil
	}
	return h.Net.CollectForeignMasquerade(ctx, req.Network, migrate.ValidAttachments(req))
}

// checkForeign reduces what CHECK wants to what the reference makes, if it made
// the attachment, and lists what of that is missing.
func (a *Handler) checkForeign(ctx context.Context, h *roles.Host, req *roles.Request, spec *netops.Spec) ([]netops.Difference, error) {
	m, ok := a.role.(Masquerader)
	return migrate.CheckInterface(ctx, h, req, spec, ok && m.Masquerade().On)
}

// isForeign reports whether the reference plugin made an attachment that has no
// record. The input gets the host's end of its pair, if it has one.
func isForeign(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace) (bool, error) {
	end, is, err := migrate.IsByReference(ctx, h, req, ns, in.HostLink)
	in.HostLink = cmp.Or(end, in.HostLink)
	return is, err
}

// collectForeign does so for the reference plugin of a chained role's name.
func (c *ChainedHandler) collectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if s, ok := c.role.(Successor); ok {
		return s.CollectForeign(ctx, h, req)
	}
	return nil
}

// checkForeign does so for a chained role.
func (c *ChainedHandler) checkForeign(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace, spec *netops.Spec) ([]netops.Difference, error) {
	s, ok := c.role.(Successor)
	if !ok {
		return nil, nil
	}
	rec, err := recovery.Attachment(ctx, h, in.Key)
	if err != nil || rec != nil {
		return nil, err
	}
	foreign, err := isForeign(ctx, h, req, in, ns)
	if err != nil || !foreign {
		return nil, err
	}
	return s.CheckForeign(ctx, h, in, spec)
}
