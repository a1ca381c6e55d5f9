package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
		"of a line. `--json` is for programs. With it an error is one JSON object on stderr, with `verb`, `error`, `fix` and `exitCode`;\n",
		"verbs whose output is JSON in any case, has another format or is empty have it for their errors.\n\n")
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
	write(p.root().Subcommands)
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

// TestHelpOfAllVerbs: each verb has --json, and examples with verbs and flags that exist.
func TestHelpOfAllVerbs(t *testing.T) {
	p := Process{Table: all.Table()}
	internal := []string{"trace replay inside", "lab forward"} // other verbs start them
	var look func([]*cli.Command)
	look = func(cmds []*cli.Command) {
		for _, c := range cmds {
			look(c.Subcommands)
			if len(c.Flags) == 0 || slices.Contains(internal, verbOf(c)) {
				continue // a noun
			}
			if !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == jsonFlag }) {
				t.Errorf("%s has no --json", verbOf(c))
			}
			_, lines, _ := strings.Cut(c.Description, "examples:\n")
			shown := 0
			for line := range strings.Lines(lines) {
				command, ok := strings.CutPrefix(line, "  cnibox ")
				if !ok {
					continue
				}
				command, _, _ = strings.Cut(command, "  ")
				command, _, _ = strings.Cut(command, " | ")
				command, _, _ = strings.Cut(command, " > ")
				checkCommand(t, "cnibox "+strings.TrimSuffix(command, "\n"))
				if strings.HasPrefix(command, verbOf(c)) {
					shown++
				}
			}
			if shown == 0 {
				t.Errorf("the help of %s has no example of it", verbOf(c))
			}
		}
	}
	look(p.root().Subcommands)
}

// TestCommandsOfPages: the command lines of cnibox in README.md and docs/ have verbs and flags that exist. Those that start a daemon have
// its own flags, and are left out.
func TestCommandsOfPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	cmds := (&Process{Table: all.Table()}).root().Subcommands
	line := regexp.MustCompile("(?m)(`|^ *[#$] |^ *)cnibox ([a-z][^`\n]*)")
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range line.FindAllStringSubmatch(string(text), -1) {
			command := regexp.MustCompile(`( [|&>#<]|;|  |: |, |\)).*`).ReplaceAllString(match[2], "")
			words := strings.Fields(command)
			cmd := find(cmds, words[0])
			if cmd == nil {
				if _, role := all.Table().Lookup(words[0]); !role && match[1] == "`" { // a line of text can begin with the name of the program
					t.Errorf("%s: no verb %q in %q", page, words[0], match[2])
				}
				continue
			}
			if _, daemon := all.Table().Lookup(words[0]); daemon && (len(words) == 1 || find(cmd.Subcommands, words[1]) == nil) {
				continue
			}
			found++
			for i, word := range words {
				words[i], _, _ = strings.Cut(word, "=")
			}
			checkCommand(t, "cnibox "+strings.Join(words, " "))
		}
	}
	if found < 200 {
		t.Errorf("%d commands", found)
	}
}
