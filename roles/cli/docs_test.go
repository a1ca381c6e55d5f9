package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/all"
)

var update = flag.Bool("update", false, "write docs/cli.md")

const docsFile = "../../docs/cli.md"

// TestDocs keeps docs/cli.md equal to the help.
func TestDocs(t *testing.T) {
	var b bytes.Buffer
	fmt.Fprint(&b, "# The command line\n\nGenerated from `cnibox help` by `go test ./roles/cli -run TestDocs -update`.\n\n")
	fmt.Fprint(&b, "Results go to stdout, everything else to stderr. Flags may follow arguments.\n",
		"Colours and aligned tables are for terminals. Otherwise a table has tabs between the cells\n",
		"of a line. `--json` is for programs.\n\n")
	fmt.Fprintf(&b, "```\n%s\n%s```\n", exitCodes, environment)
	p := Process{Table: all.Table()}
	var write func([]*cli.Command)
	write = func(cmds []*cli.Command) {
		for _, c := range cmds {
			var help bytes.Buffer
			writeVerb(&help, c)
			title, rest, _ := strings.Cut(strings.TrimSuffix(help.String(), "\n"+exitCodes), "\n")
			fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", title, strings.TrimSpace(rest))
			write(c.Subcommands)
		}
	}
	app := p.app()
	app.Setup()
	write(app.Commands)
	if *update {
		if err := os.WriteFile(docsFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(have)); diff != "" {
		t.Errorf("docs/cli.md differs from the help; run: go test ./roles/cli -run TestDocs -update\n(-help +file):\n%s", diff)
	}
}
