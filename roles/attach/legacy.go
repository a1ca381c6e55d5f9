package attach

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/migrate"
	"github.com/cnibox/cnibox/roles/recovery"
)

// Masquerader is an interface role's SpecBuilder that can masquerade. The reference plugin of its
// name makes other rules for that, which are removed with the containers that it
// attached.
type Masquerader interface {
	Masquerade() Masquerade
}

// LegacyCleaner is a Chained that finds its objects of an attachment without a record:
// an ADD whose state was lost made them, or the reference plugin. An ADD that wanted
// no objects leaves no record either, so the search must be fast if there are none.
type LegacyCleaner interface {
	// CleanLegacy is called by DEL while Wants is true. It removes the attachment's
	// objects, and none of other attachments. An absent object is not an error. The container
	// is nil when it is gone or not known.
	CleanLegacy(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error
}

// LegacyChecker is a Chained that knows what the reference plugin of its name makes,
// beside its being an LegacyCleaner.
type LegacyChecker interface {
	// CheckLegacy reduces what CHECK wants to what the reference makes for an
	// attachment, and lists what of that is missing.
	CheckLegacy(ctx context.Context, h *roles.Host, in *Input, spec *netops.Spec) ([]netops.Difference, error)
	// CollectLegacy is GC's part: it removes what the reference made for
	// containers that are not valid, if it can find the container of an object.
	CollectLegacy(ctx context.Context, h *roles.Host, req *roles.Request) error
}

// cleanLegacy removes what the reference plugin of the role's name made for an
// attachment without a record.
func (a *Handler) cleanLegacy(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	_, masquerades := a.role.(Masquerader)
	return migrate.CleanInterface(ctx, h, req, ns, a.orphans(req), masquerades)
}

// collectLegacy removes the rules of containers that are gone, which the
// reference plugin of the role's name attached.
func (a *Handler) collectLegacy(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if _, ok := a.role.(Masquerader); !ok {
		return nil
	}
	return h.Net.CollectReferencePluginMasquerade(ctx, req.Network, migrate.ValidAttachments(req))
}

// checkLegacy reduces what CHECK wants to what the reference makes, if it made
// the attachment, and lists what of that is missing.
func (a *Handler) checkLegacy(ctx context.Context, h *roles.Host, req *roles.Request, spec *netops.Spec) ([]netops.Difference, error) {
	m, ok := a.role.(Masquerader)
	return migrate.CheckInterface(ctx, h, req, spec, ok && m.Masquerade().On)
}

// isLegacy reports whether the reference plugin made an attachment that has no
// record. The input gets the host's end of its pair, if it has one.
func isLegacy(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace) (bool, error) {
	end, is, err := migrate.IsByReference(ctx, h, req, ns, in.HostLink)
	in.HostLink = cmp.Or(end, in.HostLink)
	return is, err
}

// collectLegacy does so for the reference plugin of a chained role's name.
func (c *ChainedHandler) collectLegacy(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if s, ok := c.role.(LegacyChecker); ok {
		return s.CollectLegacy(ctx, h, req)
	}
	return nil
}

// checkLegacy does so for a chained role.
func (c *ChainedHandler) checkLegacy(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace, spec *netops.Spec) ([]netops.Difference, error) {
	s, ok := c.role.(LegacyChecker)
	if !ok {
		return nil, nil
	}
	rec, err := recovery.Attachment(ctx, h, in.Key)
	if err != nil || rec != nil {
		return nil, err
	}
	foreign, err := isLegacy(ctx, h, req, in, ns)
	if err != nil || !foreign {
		return nil, err
	}
	return s.CheckLegacy(ctx, h, in, spec)
}
