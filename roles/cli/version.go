package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/lint"
)

func (p *Process) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version, and the versions of the CNI spec",
		Description: `examples:
  cnibox version --json`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON, with the commit and the features of this kernel"}},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return writeJSON(p.Stdout, map[string]any{
					"version": p.Version, "commit": commit(), "cniVersions": lint.Versions(), "go": runtime.Version(), "arch": runtime.GOARCH,
					"features": kernelFeatures(c.Context),
				})
			}
			_, err := fmt.Fprintf(p.Stdout, "cnibox %s (%s, %s)\nCNI %s\n",
				p.Version, runtime.Version(), runtime.GOARCH, strings.Join(lint.Versions(), " "))
			return err
		},
	}
}

// commit returns the commit that the program was built from, with "+dirty" if files differed from it. It is empty if the build had no
// repository.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return revision + dirty
}

// kernelFeatures returns which of netops.Features this kernel has. It leaves out what cannot be probed, as without CAP_NET_ADMIN.
func kernelFeatures(ctx context.Context) map[string]bool {
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // nothing is written by it
	features := map[string]bool{}
	for _, f := range netops.Features() {
		if !f.IsProbed() {
			continue
		}
		if has, err := n.HasFeature(ctx, &f); err == nil {
			features[f.Name] = has
		}
	}
	return features
}
