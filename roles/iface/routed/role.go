package routed

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the routed role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:   []string{"routed"},
		Kind:    roles.Interface,
		Summary: "a veth pair without a bridge: host routes, a gateway of nobody's, a routing table for each NIC",
		Conf:    func() any { return new(Conf) },
		New:     attach.Maker(readRole),
		Undo:    attach.Undoer(readRole),
	}
}

// readRole decodes and defaults a configuration; with a ConfError there is what
// could be decoded.
func readRole(raw []byte) (*role, error) {
	c := new(Conf)
	err := roles.Decode(raw, c)
	c.withDefaults()
	return &role{conf: c}, err
}

// role implements attach.Interface for one configuration.
type role struct{ conf *Conf }

func (r *role) Role() string { return "routed" }

func (r *role) Validate() error { return r.conf.Validate() }

func (r *role) IPAM() string { return r.conf.IPAM.Type }

// HostPrefix is the start of the names of the interfaces on the host.
func (r *role) HostPrefix() string { return r.conf.HostVethPrefix }

// Shared is one lock for all networks: they share rules, tables and NICs.
func (r *role) Shared() []string { return []string{"routed"} }

// Status reports whether the uplinks exist.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	for i, u := range r.conf.Uplinks {
		if _, err := h.Net.Link(ctx, nil, u.Link); err != nil {
			return fmt.Errorf("%w: uplinks[%d]: %w", roles.ErrNotAvailable, i, err)
		}
	}
	return nil
}
