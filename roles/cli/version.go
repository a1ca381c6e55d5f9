package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/cnibox/cnibox/roles/cli/command"
	"github.com/cnibox/cnibox/roles/cli/lint"
)

func (p *Process) versionCommand() *command.Verb {
	return &command.Verb{
		Name:  "version",
		Usage: "print the version, and the versions of the CNI spec",
		Flags: []command.Flag{&command.Switch{Name: "json", Usage: "print JSON"}},
		Action: func(c *command.Call) error {
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
