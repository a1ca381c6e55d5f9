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

	"github.com/cnibox/cnibox/roles/all"
)

var update = flag.Bool("update", false, "write docs/cli.md")

const docsFile = "../../docs/cli.md"

// TestDocs keeps the list of verbs in docs/cli.md equal to the help. The manual page of a release has the help of each verb of that list.
func TestDocs(t *testing.T) {
	p := Process{Table: all.Table()}
	rest := p.root().verbs
	var b strings.Builder
	section := func(title string, listed func(v *verb) bool) {
		fmt.Fprintf(&b, "\n## %s\n", strings.ToUpper(title[:1])+title[1:])
		rest = slices.DeleteFunc(rest, func(v *verb) bool {
			if listed(v) {
				fmt.Fprintf(&b, "\n### cnibox %s\n\n%s.\n\n```\n", v.name, strings.ToUpper(v.usage[:1])+v.usage[1:])
				writeUsage(&b, v, "")
				b.WriteString("```\n")
			}
			return listed(v)
		})
	}
	for _, g := range groups() {
		section(g.title, func(v *verb) bool { return slices.Contains(g.verbs, v.name) })
	}
	section("other verbs", func(*verb) bool { return true })
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
		t.Errorf("docs/cli.md differs from the help; run: go test ./roles/cli -run TestDocs -update\n(-help +file):\n%s", diff)
	}
}

// writeUsage writes a line with the flags of a verb, except those that most verbs have, and a line for each verb of it.
func writeUsage(w io.Writer, v *verb, text string) {
	line := "cnibox " + v.name
	for _, o := range v.flags {
		if o.name != jsonFlag && o.name != "table" {
			line += " [--" + o.name
			if !o.isSwitch {
				line += "=" + strings.ToUpper(o.name)
			}
			line += "]"
		}
	}
	if strings.Count(line, " [") > 9 {
		line = "cnibox " + v.name + " [FLAG…]"
	}
	if len(v.verbs) == 0 || v.run != nil && len(v.flags) > 0 {
		fmt.Fprintf(w, "%s\n", strings.TrimSpace(line+" "+v.args))
		if text != "" {
			fmt.Fprintf(w, "    %s\n", text)
		}
	}
	for _, one := range v.verbs {
		writeUsage(w, one, one.usage)
	}
}

// TestHelpOfAllVerbs: each verb has --json, and examples with verbs and flags that exist.
func TestHelpOfAllVerbs(t *testing.T) {
	p := Process{Table: all.Table()}
	internal := []string{"trace replay inside", "lab forward"} // other verbs start them
	p.root().each(func(v *verb) {
		if len(v.flags) == 0 || slices.Contains(internal, v.name) {
			return // a noun
		}
		if v.option(jsonFlag) == nil {
			t.Errorf("%s has no --json", v.name)
		}
		_, lines, _ := strings.Cut(v.text, "examples:\n")
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
			if strings.HasPrefix(command, v.name) {
				shown++
			}
		}
		if shown == 0 {
			t.Errorf("the help of %s has no example of it", v.name)
		}
	})
}

// TestCommandsOfPages: the command lines of cnibox in README.md and docs/ have verbs and flags that exist. Those that start a daemon have
// its own flags, and are left out.
func TestCommandsOfPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root := (&Process{Table: all.Table()}).root()
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
			cmd := root.find(words[0])
			if cmd == nil {
				if _, role := all.Table().Lookup(words[0]); !role && match[1] == "`" { // a line of text can begin with the name of the program
					t.Errorf("%s: no verb %q in %q", page, words[0], match[2])
				}
				continue
			}
			if _, daemon := all.Table().Lookup(words[0]); daemon && (len(words) == 1 || cmd.find(words[1]) == nil) {
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
