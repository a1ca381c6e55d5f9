package cli

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/urfave/cli/v2"
)

func (p *Process) statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "ask the plugins whether they can serve",
		ArgsUsage: "FILE",
		Description: "Succeeds silently when every plugin of the list is ready. CNI versions before\n" +
			"1.1.0 have no STATUS: it succeeds then.",
		Flags: cniFlags(),
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return usagef("cnibox help status", "want FILE")
			}
			r, err := p.runtime(c, c.Args().First())
			if err != nil {
				return err
			}
			return p.explainPlugin(c, r.cni.GetStatusNetworkList(c.Context, r.list))
		},
	}
}

func (p *Process) gcCommand() *cli.Command {
	return &cli.Command{
		Name:      "gc",
		Usage:     "remove what belongs to no valid attachment of a network",
		ArgsUsage: "FILE [CONTAINERID[/IFNAME]…]",
		Description: `The attachments named are valid, IFNAME being eth0 if it is not given; everything
else of the network is removed, also what another runtime made. So an empty list
must be asked for with --none; --added keeps what "cnibox add" attached.`,
		Flags: append(cniFlags(),
			&cli.BoolFlag{Name: "none", Usage: "no attachment is valid: remove everything of the network"},
			&cli.BoolFlag{Name: "added", Usage: "attachments made by cnibox add and not yet deleted are valid"},
		),
		Action: func(c *cli.Context) error {
			names := c.Args().Slice()
			if len(names) == 0 {
				return usagef("cnibox help gc", "want FILE and the valid attachments")
			}
			if len(names) == 1 && !c.Bool("none") && !c.Bool("added") {
				return usagef("--none, if really everything is to go", "no valid attachment given")
			}
			if c.Bool("none") && (c.Bool("added") || len(names) > 1) {
				return usagef("cnibox help gc", "--none contradicts --added and named attachments")
			}
			r, err := p.runtime(c, names[0])
			if err != nil {
				return err
			}
			if r.list.DisableGC {
				return fmt.Errorf("%s: disableGC is set, so that nothing is removed", names[0])
			}
			if ok, err := version.GreaterThanOrEqualTo(r.list.CNIVersion, "1.1.0"); err != nil || !ok {
				fmt.Fprintf(p.Stderr, "cnibox: gc: plugins are not asked, CNI %s has no GC; add 1.1.0 to cniVersions\n", r.list.CNIVersion)
			}
			valid, err := r.valid(names[1:], c.Bool("added"))
			if err != nil {
				return err
			}
			return p.explainPlugin(c, r.cni.GCNetworkList(c.Context, r.list, &libcni.GCArgs{ValidAttachments: valid}))
		},
	}
}

// valid is the list of valid attachments, never nil: for plugins an absent
// list is another thing than an empty one.
func (r *call) valid(names []string, added bool) ([]types.GCAttachment, error) {
	out := []types.GCAttachment{}
	for _, n := range names {
		id, ifname, ok := strings.Cut(n, "/")
		if !ok {
			ifname = "eth0"
		}
		if utils.ValidateContainerID(id) != nil || utils.ValidateInterfaceName(ifname) != nil {
			return nil, usagef("cnibox help gc", "%q is not a CONTAINERID or CONTAINERID/IFNAME", n)
		}
		out = append(out, types.GCAttachment{ContainerID: id, IfName: ifname})
	}
	// The library is silent when it cannot read what it kept, and collects nothing.
	cached, err := r.cni.GetCachedAttachments("")
	if err != nil {
		return nil, stateHint(err)
	}
	if !added {
		return out, nil
	}
	for _, a := range cached {
		if a.Network == r.list.Name {
			out = append(out, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
		}
	}
	return out, nil
}
