package macvlan

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// kind is the role's name and the kernel's kind of link.
const kind = "macvlan"

// Role is the macvlan role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{kind},
		Summary:      "an interface with its own MAC on top of a host interface",
		Reference:    "v1.10.0",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.SpecBuilder { return &role{Upper: c.upper(), conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct {
	attach.Upper
	conf *Conf
}

// Build computes the spec and the result of one attachment.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	mac, err := in.Args.MAC(r.conf.RuntimeConfig.MAC, r.conf.MAC)
	if err != nil {
		return nil, err
	}
	if mac == "" && r.conf.Mode != passthru {
		mac = in.ContainerMAC
	}
	return r.Link(in, netops.Link{MAC: mac, Mode: r.conf.Mode, BCQueueLen: r.conf.BCQueueLen})
}
