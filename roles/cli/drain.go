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
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// drain gives the node back to the plugins before us, as far as nothing is
// attached by us, and lists what is. It can be called again and again.
func (p *Process) drain(c *cli.Context) error {
	ctx := c.Context
	h, done, err := p.host(ctx, "")
	if err != nil {
		return err
	}
	defer done()
	if _, err := known(ctx, h); err != nil {
		return stateHint(err)
	}
	if _, err := node.Reap(ctx, h, ""); err != nil {
		return stateHint(err)
	}
	if err := p.handBack(c, h); err != nil {
		return stateHint(err)
	}
	state, err := readState(ctx, h)
	if err != nil {
		return stateHint(err)
	}
	if n := len(state.Attachments); n > 0 {
		if err := p.writeAttachments(state.Attachments, h.Now(), p.style(c)); err != nil {
			return err
		}
		return withHint(fmt.Errorf("%d interfaces are attached by cnibox still: %w", n, errDifferent), "the same call again, when their containers are gone")
	}
	if err := p.sweep(ctx, h); err != nil {
		return stateHint(err)
	}
	return p.uninstall(c, nil, true)
}

// handBack has the files of the plugins change places, once. The leases are
// written before, so that the plugins put back know the addresses in use, and
// once more after, for what was attached in between.
func (p *Process) handBack(c *cli.Context, h *roles.Host) error {
	ctx, dir := c.Context, c.String("dir")
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
		func() error { return node.NameDevices(ctx, h) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// exportAll has every role that can write its state write it to where the
// program that it stands for keeps it.
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

// sweep removes what networks shared, and the state of this boot.
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
		errs = append(errs, node.RemoveStrays(ctx, h, n.Name, nil), node.RemoveShared(ctx, h, n.Name, nil))
	}
	errs = append(errs, h.Net.RemoveTables(ctx))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	state := filepath.Dir(h.Store.Path())
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	fmt.Fprintln(p.Stdout, "removed "+printable(state))
	return nil
}
