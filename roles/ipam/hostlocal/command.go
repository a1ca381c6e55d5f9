package hostlocal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
)

// commands returns the role's commands of the command line.
func commands() []roles.CommandVerb {
	read := func(_ context.Context, _ *roles.Host, conf []byte) (*leasing.Allocator, error) {
		a, err := newHandler(conf)
		if err != nil {
			return nil, err
		}
		return a.Allocator, nil
	}
	verbs := []roles.CommandVerb{{
		Name: "state export", Args: "[DIR]", Run: exportLeases,
		Help: "write the leases in the format of the reference host-local",
	}}
	verbs = append(verbs, leasing.Verbs(read, "host-local")...)
	return append(verbs, roles.CommandVerb{
		Name: "ipam import", Args: "FILE|DIR", Run: importOne,
		Flags: []roles.Flag{{Name: "force", Help: "repeat an import, and overwrite reservations of other identities", Switch: true}},
		Help:  "import a file of ipam export, or a directory of the reference host-local", Example: "ipam import /var/lib/cni/networks/net",
	})
}

// exportLeases is `cnibox state export --format host-local DIR`.
func exportLeases(ctx context.Context, h *roles.Host, _ map[string]string, args []string) (any, error) {
	switch len(args) {
	case 0:
		return leasefiles.Export(ctx, h, "")
	case 1:
		return leasefiles.Export(ctx, h, args[0])
	}
	return nil, fmt.Errorf("export leases: want at most one directory, have %d arguments", len(args))
}

func importOne(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("want FILE or DIR")
	}
	return importPath(ctx, h, args[0], flags["force"] != "")
}
