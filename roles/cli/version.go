package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/cli/lint"
)

func (p *Process) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version, and the versions of the CNI spec",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return writeJSON(p.Stdout, map[string]any{
					"version": p.Version, "cniVersions": lint.Versions(), "go": runtime.Version(), "arch": runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(p.Stdout, "cnibox %s (%s, %s)\nCNI %s\n",
				p.Version, runtime.Version(), runtime.GOARCH, strings.Join(lint.Versions(), " "))
			return err
		},
	}
}
