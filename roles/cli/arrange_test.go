package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

func TestArrange(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "",
		"nonsense --json":                "nonsense --json",
		"list":                           "list",
		"plan f --json":                  "plan --json -- f",
		"plan f --id x g":                "plan --id x -- f g",
		"plan --id=x f":                  "plan --id=x -- f",
		"plan -id x f":                   "plan -id x -- f",
		"plan f --id":                    "plan --id -- f",
		"plan -- --json":                 "plan -- --json",
		"plan - --json":                  "plan --json -- -",
		"plan f --nonsense x":            "plan --nonsense -- f x",
		"add f c n --args A=b --cap {}":  "add --args A=b --cap {} -- f c n",
		"state":                          "state",
		"state --json":                   "state --json",
		"state export f --format json":   "state export --format json -- f",
		"greet a --to b":                 "greet --to b -- a",
		"lint f --help":                  "help lint",
		"state export -h":                "help state export",
		"-h":                             "help",
		"add f c n -- -h":                "add -- f c n -h",
		"install --dir --help testmap":   "help install",
		"completion bash":                "completion -- bash",
		"plan --json f --json=false":     "plan --json --json=false -- f",
		"gc f c1/eth0 --none c2 --added": "gc --none --added -- f c1/eth0 c2",
	} {
		p := Process{Table: testTable()}
		got, err := arrange(p.root().Subcommands, strings.Fields(in))
		if err != nil {
			t.Errorf("arrange(%q): %v", in, err)
		}
		if diff := cmp.Diff(strings.Fields(want), append([]string{}, got...)); diff != "" {
			t.Errorf("arrange(%q) (-want +got):\n%s", in, diff)
		}
	}
	p := Process{Table: testTable()}
	if _, err := arrange(p.root().Subcommands, []string{"lab", "nonsense"}); !errors.Is(err, roles.ErrUsage) {
		t.Errorf("unknown verb of lab: %v", err)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "ünïcödé → ok": "ünïcödé → ok", "": "",
		"a\x1b[31mb": `"a\x1b[31mb"`, "tab\t": `"tab\t"`, "bad\xff": `"bad\xff"`, "\u202eevil": `"\u202eevil"`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzArrange: for any input, arrange neither loses nor adds an argument.
func FuzzArrange(f *testing.F) {
	f.Add("plan f --id x -- --json")
	f.Add("state export --format= - --")
	f.Add("--= --- - ''")
	f.Fuzz(func(t *testing.T, line string) {
		in := strings.Split(line, " ")
		p := Process{Table: testTable()}
		out, err := arrange(p.root().Subcommands, in)
		if err != nil || len(out) > 0 && out[0] == "help" {
			return
		}
		count := func(words []string) map[string]int {
			m := map[string]int{}
			for _, w := range words {
				if w != "--" {
					m[w]++
				}
			}
			return m
		}
		if diff := cmp.Diff(count(in), count(out)); diff != "" {
			t.Errorf("arrange(%q) = %q:\n%s", in, out, diff)
		}
	})
}
