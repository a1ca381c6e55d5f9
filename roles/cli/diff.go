package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) diffCommand() *cli.Command {
	return &cli.Command{
		Name:  "diff",
		Usage: "compare all attachments of the node with their specifications, as a plan; --apply makes it",
		Description: `Compares every attachment of the node, also those of other plugins: those in the caches of
containerd, CRI-O, podman and nerdctl by CHECK of their plugins, and others by their records.
Prints what is missing (+), changed (~) and extra (-), each with its inverse, and what
cannot be changed in place (!), with what to do. Extra are objects of cnibox without a record.
With --json the elements are printed as they are found.
Exits with 3 if there are differences. "cnibox check --all" is the same.

--apply asks on a terminal, and makes the changes at once with --yes. It also does what
"cnibox state repair" does for damaged state files. "cnibox repair" is the same.

--after compares the attachments of FILE's network with what FILE would make of them, and
changes nothing. A container gets the new configuration when it is restarted.

examples:
  cnibox diff
  cnibox diff --json | jq -r '.[] | .containerID' | sort -u
  cnibox diff --apply              print the plan, and ask
  cnibox diff --after NEW.conflist`,
		Flags: append(repairFlags(),
			&cli.BoolFlag{Name: "apply", Usage: "make the changes"},
			&cli.StringFlag{Name: "after", Usage: "the network's new `FILE`"},
		),
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			switch {
			case c.Bool("apply") && c.String("after") != "":
				return advice.Usagef("cnibox help diff", "--apply and --after exclude each other: --after changes nothing")
			case c.Bool("apply"):
				return p.repairNode(c, h)
			case c.Bool("yes"):
				return advice.Usagef("cnibox diff --apply --yes", "--yes is for --apply")
			}
			return p.diff(c, h, c.String("cni-path"))
		}),
	}
}

func (p *Process) repairNodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "make the node's attachments as they should be; print the plan first",
		Description: `Prints the plan of "cnibox diff" and asks on a terminal, as "cnibox diff --apply". It makes the
changes at once with --yes, and none otherwise. Exits with 3 if something is left to repair.

examples:
  cnibox repair              print the plan, and ask
  cnibox repair --yes        for scripts`,
		Flags:  repairFlags(),
		Action: p.onNode(p.repairNode),
	}
}

func repairFlags() []cli.Flag {
	return append(pathFlag("those of the network's runtime, or of all runtimes"),
		&cli.BoolFlag{Name: "yes", Usage: "make the changes without a question"},
		&cli.BoolFlag{Name: "json", Usage: "print the differences as JSON; of changes, those that are left"},
	)
}

// diff is `cnibox diff` without --apply.
func (p *Process) diff(c *cli.Context, h *roles.Host, path string) error {
	a, err := p.newAuditor(c.Context, h, path, nil)
	if err != nil {
		return err
	}
	if file := c.String("after"); file != "" {
		a.after, err = p.loadNetwork(file)
		if err != nil {
			return err
		}
		if a.after.DisableCheck || !result.AtLeast(a.after.CNIVersion, "0.4.0") {
			return fmt.Errorf("%s: a list without CHECK cannot be compared: want cniVersion 0.4.0 or newer, and no disableCheck", file)
		}
	}
	array := jsonArray[difference]{w: p.Stdout}
	if c.Bool(jsonFlag) {
		a.stream = array.writeElements
	}
	plan, err := a.plan(c.Context)
	if err != nil {
		return err // without an end, the array is not taken for a whole one
	}
	if c.Bool(jsonFlag) {
		err = errors.Join(array.writeElements(plan.ofNode()), array.end())
	} else {
		plan.write(p.Stdout, p.style(c))
	}
	if err != nil {
		return err
	}
	found := plan.differences()
	if a.after != nil && len(plan.all) == 0 {
		fmt.Fprintf(p.Stderr, "cnibox: diff: this node has no attachment of network %q\n", a.after.Name)
	}
	for _, one := range plan.all {
		if one.busy != "" {
			fmt.Fprintf(p.Stderr, "cnibox: %s: not compared: %s: %s\n", verbOf(c.Command), printable(one.Describe()), printable(one.busy))
		}
	}
	if len(found) == 0 {
		if plan.compared() == 0 && len(plan.all) > 0 {
			return fmt.Errorf("none of %s could be compared", counted(len(plan.all), "attachment"))
		}
		_, err = fmt.Fprintf(p.Stderr, "cnibox: %s: no differences found in %s\n", verbOf(c.Command), plan.counted())
		return err
	}
	err = foundProblem(len(found), len(plan.all))
	if plan.changes() {
		err = advice.With(err, "cnibox repair, which prints its plan first")
	}
	return err
}

// foundProblem is the problem that attachments differ from their specifications.
func foundProblem(found, attachments int) error {
	return problem(fmt.Sprintf("%s found in %s", counted(found, "difference"), counted(attachments, "attachment")))
}

// nodePlan is the plan that repairs a node.
type nodePlan struct {
	all []*audited
	// lost are cnibox's nftables sets that records need and another program deleted.
	lost []string
	// other has what is of no attachment: the objects of cnibox without a record, or with --after
	// the differences of a new container. policies has the pods' elements of network policies.
	other, policies *audited
}

// compared returns the number of attachments that were compared.
func (n *nodePlan) compared() (all int) {
	for _, one := range n.all {
		if one.busy == "" {
			all++
		}
	}
	return all
}

// counted says how many attachments were compared, and how many were not.
func (n *nodePlan) counted() string {
	text := counted(n.compared(), "attachment")
	if others := len(n.all) - n.compared(); others > 0 {
		text += fmt.Sprintf("; %d not compared", others)
	}
	return text
}

// plan compares all attachments, and finds what is of none of them.
func (a *auditor) plan(ctx context.Context) (*nodePlan, error) {
	if a.after == nil {
		var err error
		a.lost, err = recovery.LostSets(ctx, a.h, true)
		if err != nil {
			return nil, err
		}
	}
	all, err := a.all(ctx)
	if err != nil {
		return nil, err
	}
	n := &nodePlan{all: all, lost: a.lost, policies: &audited{}}
	if a.after != nil {
		n.other, err = a.afterAll(ctx, all)
		return n, err
	}
	n.policies, err = a.findLostPolicies(ctx)
	if err != nil {
		return nil, err
	}
	n.other, err = a.findExtra(ctx)
	return n, err
}

// findLostPolicies finds the pods whose elements of network policies another program deleted. Without the agent nothing else restores them.
func (a *auditor) findLostPolicies(ctx context.Context) (*audited, error) {
	lost, err := enforce.Lost(ctx, a.h)
	if err != nil {
		return nil, err
	}
	of := &audited{}
	for _, p := range lost {
		c := netops.Change{Do: netops.Step{Verb: netops.VerbAdd, Object: p}, Undo: &netops.Step{Verb: netops.VerbDel, Object: p}}
		of.add(p.String(), "present", "absent", fixRepair).Changes = []netops.Change{c}
	}
	return of, nil
}

// findExtra finds the objects of cnibox without a record. An attachment in a runtime's cache may
// have lost its record, and so may the container of an interface, so both keep their objects.
func (a *auditor) findExtra(ctx context.Context) (*audited, error) {
	others := map[string]bool{}
	for label := range recovery.ReadCaches(a.h, a.p.cacheDirs()) {
		others[label] = true
	}
	err := a.eachDelegate(ctx, func(_, key store.Key) { others[attachment.Label(key)] = true })
	if err != nil {
		return nil, err
	}
	o, err := recovery.LastingOrphans(ctx, a.h, others)
	if err != nil {
		return nil, err
	}
	extra := &audited{}
	for _, l := range o.Links {
		extra.add(fmt.Sprintf("link %s alias %s", l.Name, l.Alias), "a record", "none", fixRecord).Key = l.Key
	}
	for _, made := range attachment.Inverses(o.Unbound()) {
		c := netops.Change{Do: *made.Undo, Undo: &made.Do}
		extra.add(c.Do.Object.String(), "absent", "present", fixRepair).Changes = []netops.Change{c}
		extra.plan.Changes = append(extra.plan.Changes, c)
	}
	return extra, nil
}

// differences returns the differences of the plan. It is not nil.
func (n *nodePlan) differences() []difference {
	return append(differences(n.all), n.ofNode()...)
}

// ofNode returns the differences that are of no attachment of the node.
func (n *nodePlan) ofNode() []difference {
	out := slices.Concat(n.policies.found, n.other.found)
	if len(n.lost) > 0 {
		out = append(out, difference{Object: "nftables rules of cnibox", Want: "present", Have: "absent", Fix: fixRepair})
	}
	return out
}

// changes reports whether the plan changes anything.
func (n *nodePlan) changes() bool {
	return slices.ContainsFunc(n.differences(), func(d difference) bool { return d.Fix == fixRepair })
}

// write prints the plan.
func (n *nodePlan) write(out io.Writer, s style) {
	if len(n.lost) > 0 {
		fmt.Fprintf(out, "nftables\n  %s rules of cnibox in %d sets\n", s.paint(green, "+"), len(n.lost))
	}
	for _, one := range slices.Concat(n.all, []*audited{n.policies, n.other}) {
		switch {
		case len(one.found) == 0:
			continue
		case one == n.policies:
			fmt.Fprintln(out, s.paint(bold, "network policies"))
		case one.Network == "":
			fmt.Fprintln(out, s.paint(bold, "without a record"))
		default:
			fmt.Fprintf(out, "%s on %s, %s\n", s.paint(bold, printable(s.name(one.pod, one.ContainerID))), printable(one.Network), printable(one.IfName))
		}
		one.write(out, s)
	}
}

func (one *audited) write(out io.Writer, s style) {
	if one.dead {
		fmt.Fprintf(out, "  %s the record, and what the ended container left\n", s.paint(red, "-"))
		return
	}
	var last netops.Object
	for _, d := range one.found {
		for _, c := range d.Changes {
			fmt.Fprintln(out, "  "+changeLine(c, s)+inverse(c))
		}
		if len(d.Changes) > 0 {
			last = d.of
		} else if d.of == nil || d.of != last { // the changes of an object are those of all of its differences
			fmt.Fprintf(out, "  %s %s: want %s, have %s: %s\n", s.paint(yellow, "!"), printable(d.Object), printable(d.Want), printable(d.Have), d.Fix)
		}
	}
}

// inverse returns the inverse of a change for people. An object that is made or deleted is not repeated.
func inverse(c netops.Change) string {
	if c.Undo == nil {
		return ""
	}
	line := changeLine(netops.Change{Do: *c.Undo}, style{})
	if c.Do.Verb != netops.VerbSet {
		line = line[:1]
	}
	return "  (undo " + line + ")"
}
