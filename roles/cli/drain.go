package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
)

// drain returns the node to the previous plugins if no container is attached, and lists the
// attached ones otherwise. It can be repeated.
func (p *Process) drain(c *cli.Context) error {
	ctx := c.Context
	h, done, err := p.host(ctx, "")
	if err != nil {
		return err
	}
	defer done()
	if _, err := inventory.Export(ctx, h); err != nil {
		return stateHint(err)
	}
	if _, err := attachment.Reap(ctx, h, ""); err != nil {
		return stateHint(err)
	}
	if c.Bool("if-idle") {
		if err := p.refuseAttached(c, h); err != nil {
			return err
		}
	}
	if err := p.handBack(ctx, c, h); err != nil {
		return stateHint(err)
	}
	if err := p.refuseAttached(c, h); err != nil {
		return err
	}
	if err := control.Stop(ctx, h); err != nil {
		return stateHint(fmt.Errorf("end the enforcement of network policies: %w", err))
	}
	dir, err := recovery.RemoveNode(ctx, h)
	if err != nil {
		return stateHint(err)
	}
	p.changed(change{Action: "removed", Name: dir})
	return p.uninstall(c, nil, true)
}

// refuseAttached lists the attached containers, and returns an error if there are some.
func (p *Process) refuseAttached(c *cli.Context, h *roles.Host) error {
	state, err := inventory.Read(c.Context, h)
	if err != nil || len(state.Attachments) == 0 {
		return stateHint(err)
	}
	if p.changes != nil {
		for _, a := range state.Attachments {
			p.changed(change{Action: "kept", Name: a.ContainerID, Reason: "network " + a.Network + " has it attached"})
		}
	} else if err := p.writeAttachments(state.Attachments, h.Now(), p.style(c)); err != nil {
		return err
	}
	return advice.With(fmt.Errorf("%d interfaces are still attached by cnibox: %w", len(state.Attachments), errDifferent), "the same call when their containers have ended")
}

// handBack replaces cnibox's plugins by the previous ones. It exports the leases before, so that the
// previous plugins know the used addresses, and again afterwards, because attachments may have been
// made meanwhile. If the files were replaced by an earlier call, it does nothing.
func (p *Process) handBack(ctx context.Context, c *cli.Context, h *roles.Host) error {
	ours, err := plugindir.Open(c.String("dir"), p.Executable).Files()
	if err != nil || !slices.ContainsFunc(ours, func(n string) bool { return n != plugindir.Binary }) {
		return err
	}
	for _, do := range []func() error{
		func() error { return p.exportAll(ctx) },
		func() error { return p.uninstall(c, nil, false) },
		func() error { return p.exportAll(ctx) },
		func() error { return attachment.NameDevices(ctx, h) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// exportAll exports the state of every role in the format and place of the reference plugin.
func (p *Process) exportAll(ctx context.Context) error {
	for _, r := range p.Table.Roles() {
		verb := r.Verb(exportVerb)
		if verb == nil {
			continue
		}
		h, done, err := p.host(ctx, r.Name())
		if err != nil {
			return err
		}
		_, err = verb.Run(ctx, h, map[string]string{}, nil)
		done()
		if err != nil {
			return stateHint(err)
		}
	}
	return nil
}
