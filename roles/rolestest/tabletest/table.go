// Package tabletest makes tables of roles for tests.
package tabletest

import (
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// Of returns a table of these roles.
func Of(list ...roles.Role) (t roles.Table) {
	for _, r := range list {
		t = append(t, roles.Entry{Names: strings.Join(r.Names, " "), Role: func() roles.Role { return r }})
	}
	return t
}
