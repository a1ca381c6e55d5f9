package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
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
	if _, err := rebuildAndExport(ctx, h); err != nil {
		return stateHint(err)
	}
	if _, err := record.Reap(ctx, h, ""); err != nil {
		return stateHint(err)
	}
	if err := p.handBack(ctx, c, h); err != nil {
		return stateHint(err)
	}
	state, err := readState(ctx, h)
	if err != nil {
		return stateHint(err)
	}
	if n := len(state.Attachments); n > 0 {
		if p.changes != nil {
			for _, a := range state.Attachments {
				p.changed(change{Action: "kept", Name: a.ContainerID, Reason: "network " + a.Network + " has it attached"})
			}
		} else if err := p.writeAttachments(state.Attachments, h.Now(), p.style(c)); err != nil {
			return err
		}
		return withHint(fmt.Errorf("%d interfaces are still attached by cnibox: %w", n, errDifferent), "the same call when their containers have ended")
	}
	if err := p.sweep(ctx, h); err != nil {
		return stateHint(err)
	}
	return p.uninstall(c, nil, true)
}

// handBack replaces cnibox's plugins by the previous ones. It exports the leases before, so that the
// previous plugins know the used addresses, and again afterwards, because attachments may have been
// made meanwhile. If the files were replaced by an earlier call, it does nothing.
func (p *Process) handBack(ctx context.Context, c *cli.Context, h *roles.Host) error {
	dir := c.String("dir")
	names, err := fileNames(dir)
	if err != nil {
		return err
	}
	d := newPluginDir(dir, p.Executable)
	isOurs := func(n string) bool {
		f, err := d.look(n)
		return err == nil && f.standing == ours
	}
	if !slices.ContainsFunc(names, isOurs) {
		return nil
	}
	for _, do := range []func() error{
		func() error { return p.exportAll(ctx) },
		func() error { return p.uninstall(c, nil, false) },
		func() error { return p.exportAll(ctx) },
		func() error { return record.NameDevices(ctx, h) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// exportAll exports the state of every role in the format and place of the reference plugin.
func (p *Process) exportAll(ctx context.Context) error {
	for i := range p.Table {
		r := &p.Table[i]
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

// sweep removes the shared objects of networks and the state of this boot.
func (p *Process) sweep(ctx context.Context, h *roles.Host) error {
	var networks []store.Network
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		networks, err = tx.Networks()
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range networks {
		errs = append(errs, recovery.RemoveOrphans(ctx, h, n.Name, nil), record.RemoveShared(ctx, h, n.Name, nil))
	}
	// Rules for a bridge with another program's ports are kept until now. Those ports have their own.
	rules, err := h.Net.Labelled(ctx, record.LabelPrefix)
	errs = append(errs, err, h.Net.Undo(ctx, record.Inverses(rules), nil), h.Net.RemoveTables(ctx))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	state := filepath.Dir(h.Store.Path())
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	p.changed(change{Action: "removed", Name: state})
	return nil
}
