package vlan

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// kind is the role's name and the kernel's kind of link.
const kind = "vlan"

// Role is the vlan role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{kind},
		Summary:   "a VLAN of a host interface",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.SpecBuilder { return &role{Upper: c.upper(), conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct {
	attach.Upper
	conf *Conf
}

// Build computes the spec and the result of one attachment. The MAC is the
// master's.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	return r.Link(in, netops.Link{VLANID: r.conf.VLANID})
}
