// Package all lists every role of the binary.
package all

import (
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all/plugins"
	"github.com/cnibox/cnibox/roles/daemon/agent"
	"github.com/cnibox/cnibox/roles/daemon/dhcp"
	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata/online"
	"github.com/cnibox/cnibox/roles/meta/multi"
)

// Table is every role, by kind and name. A new role is one line, here or in
// package plugins.
func Table() roles.Table {
	t := append(plugins.Table(online.Web{}, dhcp.Daemon{}),
		multi.Role(),
		agent.Role(),
	)
	kinds := []roles.Kind{roles.Interface, roles.IPAM, roles.Chained, roles.Meta, roles.Daemon}
	slices.SortStableFunc(t, func(a, b roles.Role) int { return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind) })
	return t
}
