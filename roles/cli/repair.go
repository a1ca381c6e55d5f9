package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) repairNodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "make the node's attachments as they should be; print the plan first",
		Description: `Repairs what "cnibox check --all" reports, and what "cnibox state repair" repairs: damaged
state files, rules that another program deleted, interfaces, addresses, routes and settings
of running containers, and what ended containers left. It prints the plan and asks on a
terminal. It makes the changes at once with --yes, and none otherwise. Exits with 3 if something
is left to repair.

examples:
  cnibox repair              print the plan, and ask
  cnibox repair --yes        for scripts`,
		Flags: append(cniFlags(),
			&cli.BoolFlag{Name: "yes", Usage: "make the changes without a question"},
			&cli.BoolFlag{Name: "json", Usage: "print the differences that are left as JSON"},
		),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			return stateHint(p.repairNode(c, h))
		},
	}
}

// repairNode repairs the state files, and then the attachments that they describe.
func (p *Process) repairNode(c *cli.Context, h *roles.Host) error {
	if err := p.repairFiles(c, h); err != nil {
		return err
	}
	a, all, err := p.auditAll(c.Context, h, c.String("cni-path"))
	if err != nil {
		return err
	}
	lost, err := lostSets(c.Context, h)
	if err != nil {
		return err
	}
	out := p.Stdout
	if c.Bool("json") {
		out = p.Stderr
	}
	if writeRepair(out, all, lost, p.style(c)) {
		if !p.confirm(c) {
			return errNotRepaired()
		}
		if err := a.repair(c.Context, all, len(lost) > 0); err != nil {
			return err
		}
	}
	left := differences(all)
	if len(left) == 0 {
		fmt.Fprintf(p.Stderr, "cnibox: repair: nothing is left to repair in %d attachments\n", len(all))
	}
	if c.Bool("json") {
		err = writeJSON(p.Stdout, left)
	} else if len(left) > 0 {
		fmt.Fprintln(p.Stdout, "left:")
		err = p.writeDifferences(left, p.style(c))
	}
	if err == nil && len(left) > 0 {
		err = errDifferent
	}
	return err
}

// repairFiles is `cnibox state repair` if a state file is damaged.
func (p *Process) repairFiles(c *cli.Context, h *roles.Host) error {
	errs := []error{h.Store.KeepCheck(c.Context, (*store.KeepTx).Sound), checkNode(c.Context, h)}
	damaged := false
	for _, err := range errs {
		switch {
		case errors.Is(err, store.ErrDamaged):
			damaged = true
			fmt.Fprintf(p.Stderr, "cnibox: repair: %s: it is set aside, and made again from what can be read\n", printable(err.Error()))
		case err != nil:
			return err
		}
	}
	if !damaged {
		return nil
	}
	if !p.confirm(c) {
		return errNotRepaired()
	}
	return p.repair(c, h)
}

// errNotRepaired is the error of a repair that was not confirmed.
func errNotRepaired() error {
	return withHint(fmt.Errorf("%w, nothing was changed", errDifferent), "cnibox repair --yes")
}

// lostSets returns cnibox's nftables sets that records need and another program deleted.
func lostSets(ctx context.Context, h *roles.Host) ([]string, error) {
	lost, err := h.Net.LostSets(ctx)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		if !tx.MentionsSet(lost) {
			lost = nil
		}
		return nil
	})
	return lost, err
}

// writeRepair prints the plan and reports whether it has changes.
func writeRepair(out io.Writer, all []*audited, lost []string, s style) bool {
	some := len(lost) > 0
	if len(lost) > 0 {
		fmt.Fprintf(out, "nftables\n  %s rules of cnibox in %d sets\n", s.paint(green, "+"), len(lost))
	}
	for _, one := range all {
		if !one.dead && len(one.plan.Changes) == 0 {
			continue
		}
		some = true
		fmt.Fprintf(out, "%s on %s, %s\n", s.paint(bold, s.name(one.pod, one.ContainerID)), printable(one.Network), printable(one.IfName))
		if one.dead {
			fmt.Fprintf(out, "  %s the record, and what the ended container left\n", s.paint(red, "-"))
		}
		for _, c := range one.plan.Changes {
			fmt.Fprintln(out, "  "+changeLine(c, s))
		}
	}
	return some
}

// confirm reports whether the user wants the printed changes.
func (p *Process) confirm(c *cli.Context) bool {
	if c.Bool("yes") || !p.IsTerminal {
		return c.Bool("yes")
	}
	fmt.Fprint(p.Stderr, "make these changes? [y/N] ")
	answer, _ := bufio.NewReader(p.Stdin).ReadString('\n') // no answer is no
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// repair makes the changes, and compares the attachments again. Under the lock of an
// attachment it compares and plans again, because the node may have changed since.
func (a *auditor) repair(ctx context.Context, all []*audited, rules bool) error {
	var errs []error
	if rules {
		_, err := a.h.Net.RestoreRules(ctx)
		errs = append(errs, err)
	}
	for _, one := range all {
		var err error
		switch {
		case one.dead:
			var removed bool
			if removed, err = record.ReapOne(ctx, a.h, one.Key); removed {
				_ = os.Remove(a.p.resultFile(one.Key)) // there is no file if a runtime attached the container
			}
		case len(one.plan.Changes) > 0:
			apply := func(ns *netops.Namespace) error { return a.h.Net.Apply(ctx, one.plan, ns) }
			// The settings of a link that the first round makes differ in the second.
			if err = a.audit(ctx, one, apply); err == nil {
				err = a.audit(ctx, one, apply)
			}
		default:
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("repair %s: %w", one.Describe(), err))
		}
	}
	for _, one := range all {
		if len(one.found) > 0 {
			errs = append(errs, a.audit(ctx, one, nil))
		}
	}
	return errors.Join(errs...)
}
