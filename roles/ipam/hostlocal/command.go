package hostlocal

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/roles"
)

// commands are the role's own on the command line: `cnibox state export
// --format host-local DIR`.
func commands() []roles.CommandVerb {
	return []roles.CommandVerb{{
		Name: "state export",
		Help: "write the leases as the reference host-local keeps them",
		Run: func(ctx context.Context, h *roles.Host, _ map[string]string, args []string) (any, error) {
			switch len(args) {
			case 0:
				return Export(ctx, h, "")
			case 1:
				return Export(ctx, h, args[0])
			}
			return nil, fmt.Errorf("export leases: want at most one directory, have %d arguments", len(args))
		},
	}}
}
