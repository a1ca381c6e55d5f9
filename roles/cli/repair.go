package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// repairNode repairs the state files, and then the attachments that they describe.
func (p *Process) repairNode(c *cli.Context, h *roles.Host) error {
	done, err := p.mendState(c, h, func(damage []error) bool {
		for _, err := range damage {
			fmt.Fprintf(p.Stderr, "cnibox: repair: %s: it is set aside, and made again from what can be read\n", printable(err.Error()))
		}
		return p.confirm(c)
	})
	if err := errors.Join(p.writeAnswer(done, false, style{}), err); err != nil {
		return err
	}
	a, err := p.newAuditor(c.Context, h, c.String("cni-path"), nil)
	if err != nil {
		return err
	}
	plan, err := a.plan(c.Context)
	if err != nil {
		return err
	}
	out := p.Stdout
	if c.Bool("json") {
		out = p.Stderr
	}
	if plan.changes() {
		plan.write(out, p.style(c))
		if !p.confirm(c) {
			return errNotRepaired()
		}
		err := a.repair(c.Context, plan.all, len(plan.lost) > 0)
		plan.lost = nil
		if err := errors.Join(err, a.restorePolicies(c.Context, plan), a.removeExtra(c.Context, plan)); err != nil {
			return err
		}
	}
	left := plan.differences()
	if len(left) == 0 {
		fmt.Fprintf(p.Stderr, "cnibox: %s: nothing is left to repair in %s\n", verbOf(c.Command), plan.counted())
	}
	if c.Bool("json") {
		err = writeJSON(p.Stdout, left)
	} else if len(left) > 0 {
		fmt.Fprintln(p.Stdout, "left:")
		plan.write(p.Stdout, p.style(c))
	}
	if err == nil && len(left) > 0 {
		err = errDifferent
	}
	return err
}

// restorePolicies adds the elements of network policies that are still absent, and finds what is left.
func (a *auditor) restorePolicies(ctx context.Context, n *nodePlan) error {
	if len(n.policies.found) == 0 {
		return nil
	}
	lost, err := enforce.Lost(ctx, a.h)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range lost {
		errs = append(errs, a.h.Net.RestorePodPolicy(ctx, p))
	}
	n.policies, err = a.findLostPolicies(ctx)
	return errors.Join(append(errs, err)...)
}

// removeExtra removes the extra objects that still have no record, and finds what is left.
func (a *auditor) removeExtra(ctx context.Context, n *nodePlan) error {
	extra, err := a.findExtra(ctx)
	if err != nil {
		return err
	}
	if err := a.h.Net.Apply(ctx, extra.plan, nil); err != nil {
		return err
	}
	n.other, err = a.findExtra(ctx)
	return err
}

// errNotRepaired is the error of a repair that was not confirmed.
func errNotRepaired() error {
	return advice.With(problem("nothing was changed"), "the same command with --yes")
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

// repair makes the changes of all attachments, and compares the attachments again. Under the lock of an
// attachment it compares and plans again, because the node may have changed since.
func (a *auditor) repair(ctx context.Context, all []*audited, rules bool) error {
	var errs []error
	if rules {
		_, err := a.h.Net.RestoreRules(ctx)
		a.lost, errs = nil, append(errs, err)
	}
	progress := a.p.progress("attachments")
	defer progress(1, 1)
	for i, one := range all {
		progress(i, len(all))
		var err error
		switch {
		case one.dead:
			var removed bool
			if removed, err = attachment.ReapOne(ctx, a.h, one.Key); removed {
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
	_, err := a.compareAll(ctx, all) // a repaired bridge can show what is wrong with attachments that had no differences
	return errors.Join(append(errs, err)...)
}
