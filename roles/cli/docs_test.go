package cli

import (
	"flag"
	"fmt"
	"io"
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

// TestDocs keeps the list of verbs in docs/cli.md equal to the help. The manual page of a release has the help of each verb of that list.
func TestDocs(t *testing.T) {
	p := Process{Table: all.Table()}
	rest := slices.Clone(p.root().Subcommands)
	var b strings.Builder
	section := func(title string, listed func(c *cli.Command) bool) {
		fmt.Fprintf(&b, "\n## %s\n", strings.ToUpper(title[:1])+title[1:])
		rest = slices.DeleteFunc(rest, func(c *cli.Command) bool {
			if listed(c) {
				fmt.Fprintf(&b, "\n### cnibox %s\n\n%s.\n\n", c.Name, strings.ToUpper(c.Usage[:1])+c.Usage[1:])
				var usage strings.Builder
				writeUsage(&usage, c, "")
				for line := range strings.Lines(usage.String()) {
					b.WriteString("    " + line)
				}
			}
			return listed(c)
		})
	}
	for _, g := range groups() {
		section(g.title, func(c *cli.Command) bool { return slices.Contains(g.verbs, c.Name) })
	}
	section("other verbs", func(c *cli.Command) bool { return !c.Hidden })
	fmt.Fprintf(&b, "\n## Exit codes and environment\n\n```\n%s\n%s```\n\n", exitCodes, environment)
	const start, end = "<!-- verbs:start -->\n", "<!-- verbs:end -->"
	have, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, page, _ := strings.Cut(string(have), start)
	_, after, found := strings.Cut(page, end)
	if !found {
		t.Fatalf("%s has no %s… %s", docsFile, start, end)
	}
	want := before + start + b.String() + end + after
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/cli.md differs from the help; run 'make generate'\n(-help +file):\n%s", diff)
	}
}

// writeUsage writes a line with the flags of a verb, except those that most verbs have, and a line for each verb of it.
func writeUsage(w io.Writer, c *cli.Command, text string) {
	line := "cnibox " + verbOf(c)
	for _, f := range c.Flags {
		name := f.Names()[0]
		if d, ok := f.(cli.DocGenerationFlag); ok && name != jsonFlag && name != "table" {
			line += " [--" + name
			if d.TakesValue() {
				line += "=" + strings.ToUpper(name)
			}
			line += "]"
		}
	}
	if strings.Count(line, " [") > 9 {
		line = "cnibox " + verbOf(c) + " [FLAG…]"
	}
	if len(c.Subcommands) == 0 || c.Action != nil && len(c.Flags) > 0 {
		fmt.Fprintf(w, "%s\n", strings.TrimSpace(line+" "+c.ArgsUsage))
		if text != "" {
			fmt.Fprintf(w, "    %s\n", text)
		}
	}
	for _, s := range c.Subcommands {
		writeUsage(w, s, s.Usage)
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
