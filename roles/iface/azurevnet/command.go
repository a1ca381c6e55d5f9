package azurevnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// verbs are the role's own commands: "cnibox azure-vnet ...".
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{Name: roleName, Help: "manage the bridge that replaces the node's interface"},
		{
			Name: roleName + " restore", Help: "move addresses, routes and DNS from the bridge back to the node's interface",
			Flags: []roles.Flag{
				{Name: "bridge", Help: "name of the bridge; default: all bridges that replace an interface"},
				{Name: "force", Switch: true, Help: "restore even while containers are attached; they lose their network"},
			},
			Run: restore, Example: roleName + " restore --force",
		},
	}
}

// restored is one entry of the output of `azure-vnet restore`.
type restored struct {
	Bridge string `json:"bridge"`
	Uplink string `json:"uplink"`
}

// restore moves the configuration of bridges back to the node's interfaces.
// Shared objects of networks without attachments are removed as GC does it. The
// bridges are found in the kernel.
func restore(ctx context.Context, h *roles.Host, flags map[string]string, _ []string) (any, error) {
	if err := recovery.Ensure(ctx, h); err != nil {
		return nil, err
	}
	taken, err := takeovers(ctx, h, flags["bridge"])
	if err != nil {
		return nil, err
	}
	if err := removeUnused(ctx, h); err != nil {
		return nil, err
	}
	lock, err := h.Store.LockShared(ctx, roleName, true)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	out := []restored{}
	var errs []error
	for _, t := range taken {
		err := h.Net.RestoreUplink(ctx, t, flags["force"] != "")
		switch {
		case errors.Is(err, netops.ErrConflict):
			err = fmt.Errorf("%w: containers are attached: remove them first, or use --force", err)
		case errors.Is(err, netops.ErrNotExist):
			err = fmt.Errorf("bridge %q has the addresses of interface %q, which does not exist any more: attach the interface to this machine again, "+
				"or run 'ip link del %s' to delete the bridge: %w", t.Bridge, t.Uplink, t.Bridge, err)
		case err == nil:
			out = append(out, restored{t.Bridge, t.Uplink})
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// takeovers are the bridges that replace an interface: all of them, or the one
// with the given name.
func takeovers(ctx context.Context, h *roles.Host, bridge string) ([]netops.Takeover, error) {
	all, err := h.Net.Takeovers(ctx)
	if err != nil || bridge == "" {
		return all, err
	}
	for _, t := range all {
		if t.Bridge == bridge {
			return []netops.Takeover{t}, nil
		}
	}
	return nil, roles.Usagef("bridge %q does not replace an interface: there is nothing to restore", bridge)
}

// removeUnused removes the shared objects of the role's networks that have no
// attachment.
func removeUnused(ctx context.Context, h *roles.Host) error {
	nets, err := store.Read(ctx, h.Store, (*store.Tx).Networks)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nets {
		if n.Role == roleName {
			errs = append(errs, attachment.RemoveShared(ctx, h, n.Name, []string{roleName}))
		}
	}
	return errors.Join(errs...)
}
