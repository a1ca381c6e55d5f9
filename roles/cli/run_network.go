package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/roles/see/advice"
)

func (p *Process) statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "ask the plugins whether ADD would succeed",
		ArgsUsage: "FILE",
		Description: "Succeeds if every plugin of the list is ready, and always for a CNI version before 1.1.0,\n" +
			"which has no STATUS. Prints nothing; with --json {\"ready\": true}.\n\nexamples:\n  cnibox status NET.conflist",
		Flags: cniFlags(),
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return advice.Usagef("cnibox help status", "want FILE")
			}
			r, done, err := p.runtime(c, c.Args().First())
			if err != nil {
				return err
			}
			defer done()
			err = p.explainPlugin(c, r.list.Status(c.Context, r.host.Delegate, r.Call))
			if err != nil || !c.Bool("json") {
				return err
			}
			return writeJSON(p.Stdout, map[string]bool{"ready": true})
		},
	}
}

func (p *Process) gcCommand() *cli.Command {
	return &cli.Command{
		Name:      "gc",
		Usage:     "remove all attachments of a network except the valid ones",
		ArgsUsage: "FILE [CONTAINERID[/IFNAME]…]",
		Description: `The given attachments are valid; IFNAME defaults to eth0. All other attachments of
the network are removed, also those of another runtime. To remove all of them, use
--none; --added keeps the attachments of "cnibox add".

examples:
  cnibox gc NET.conflist web db/net1
  cnibox gc NET.conflist --none`,
		Flags: append(cniFlags(),
			&cli.BoolFlag{Name: "none", Usage: "no attachment is valid: remove everything of the network"},
			&cli.BoolFlag{Name: "added", Usage: "attachments made by cnibox add and not yet deleted are valid"},
		),
		Action: func(c *cli.Context) error {
			names := c.Args().Slice()
			if len(names) == 0 {
				return advice.Usagef("cnibox help gc", "want FILE and the valid attachments")
			}
			if len(names) == 1 && !c.Bool("none") && !c.Bool("added") {
				return advice.Usagef("--none, to remove everything of the network", "no valid attachment given")
			}
			if c.Bool("none") && (c.Bool("added") || len(names) > 1) {
				return advice.Usagef("cnibox help gc", "--none contradicts --added and named attachments")
			}
			r, done, err := p.runtime(c, names[0])
			if err != nil {
				return err
			}
			defer done()
			if r.list.DisableGC {
				return fmt.Errorf("%s: disableGC is set, so nothing is removed", names[0])
			}
			if !result.AtLeast(r.list.CNIVersion, "1.1.0") {
				fmt.Fprintf(p.Stderr, "cnibox: gc: plugins are not called, because CNI %s has no GC; add 1.1.0 to cniVersions\n", r.list.CNIVersion)
			}
			return p.explainPlugin(c, r.gc(c.Context, names[1:], c.Bool("added")))
		},
	}
}

// gc detaches the attachments of add that are not valid, and runs GC of the plugins.
func (r *call) gc(ctx context.Context, names []string, added bool) error {
	valid := []roles.AttachmentID{} // not nil: plugins ignore a missing list
	for _, n := range names {
		id, ifname, ok := strings.Cut(n, "/")
		if !ok {
			ifname = "eth0"
		}
		if !roles.IsName(id) || roles.LinkName(ifname) != nil {
			return advice.Usagef("cnibox help gc", "%q is not a CONTAINERID or CONTAINERID/IFNAME", n)
		}
		id, err := r.wholeID(ctx, id)
		if err != nil {
			return err
		}
		valid = append(valid, roles.AttachmentID{ContainerID: id, IfName: ifname})
	}
	kept, err := r.p.allCached(r.list.Name)
	if err != nil {
		return stateHint(err)
	}
	var errs []error
	progress := r.p.progress("attachments")
	defer progress(1, 1)
	for i, a := range kept {
		progress(i, len(kept))
		id := roles.AttachmentID{ContainerID: a.ContainerID, IfName: a.IfName}
		switch {
		case added:
			valid = append(valid, id)
		case !slices.Contains(valid, id):
			errs = append(errs, r.delCached(ctx, a))
		}
	}
	return errors.Join(append(errs, r.list.GC(ctx, r.host.Delegate, r.Call, valid))...)
}

// delCached runs DEL of an attachment of add with the parameters of its ADD.
func (r *call) delCached(ctx context.Context, a *recovery.CacheEntry) error {
	args, err := cachedArgs(a)
	if err != nil {
		return err
	}
	del, req := *r, *r.Request
	req.ContainerID, req.IfName, req.Netns, req.Args = a.ContainerID, a.IfName, a.Netns, args
	del.Request, del.Runtime = &req, a.CapabilityArgs
	if err := del.del(ctx); err != nil {
		return fmt.Errorf("detach %q of container %q: %w", a.IfName, a.ContainerID, err)
	}
	return nil
}
