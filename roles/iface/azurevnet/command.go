package azurevnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// verbs are the role's own commands.
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{Name: roleName, Help: "the bridge that has the place of the node's interface"},
		{
			Name: roleName + " restore", Help: "give the node's interface back what its bridge took: addresses, routes, DNS",
			Flags: []roles.Flag{
				{Name: "bridge", Help: "name of the bridge; by default all that were made so"},
				{Name: "force", Switch: true, Help: "also while containers are attached: they lose their network"},
			},
			Run: restore,
		},
	}
}

// restored is what `azure-vnet restore` answers.
type restored struct {
	Bridge string `json:"bridge"`
	Uplink string `json:"uplink"`
}

// restore gives the interfaces of the node back what bridges took. What networks
// without attachments share goes the way it does with GC; what is left is found in
// the kernel.
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
			err = fmt.Errorf("bridge %q has the addresses of %q, and there is no such interface any more to give them back to: attach it to this machine again, "+
				"or take the bridge away by: ip link del %s: %w", t.Bridge, t.Uplink, t.Bridge, err)
		case err == nil:
			out = append(out, restored{t.Bridge, t.Uplink})
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// takeovers are the bridges that have an uplink's place, or the one of a name.
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
	return nil, roles.Usagef("bridge %q has no interface's place: nothing is to be restored", bridge)
}

// removeUnused removes what networks of the role share that have no attachment.
func removeUnused(ctx context.Context, h *roles.Host) error {
	var nets []store.Network
	err := h.Store.View(ctx, func(tx *store.Tx) (err error) {
		nets, err = tx.Networks()
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nets {
		if n.Role == roleName {
			errs = append(errs, record.RemoveShared(ctx, h, n.Name, []string{roleName}))
		}
	}
	return errors.Join(errs...)
}
