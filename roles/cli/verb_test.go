package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cli/lab"
)

// TestParse: flags may follow arguments, and each has one value.
func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"list":                                  "list: map[] []",
		"plan f --json":                         "plan: map[json:true] [f]",
		"plan f --id x g":                       "plan: map[id:x] [f g]",
		"plan --id=x f":                         "plan: map[id:x] [f]",
		"plan -id x f":                          "plan: map[id:x] [f]",
		"plan --id -- f":                        "plan: map[id:--] [f]",
		"plan -- --json":                        "plan: map[] [--json]",
		"plan - --json":                         "plan: map[json:true] [-]",
		"plan --json f --json=false":            "plan: map[json:false] [f]",
		"add f c n --args A=b --cap {}":         "add: map[args:A=b cap:{}] [f c n]",
		"add f c n -- -h":                       "add: map[] [f c n -h]",
		"state --json":                          "state: map[json:true] []",
		"state export f --format json":          "state export: map[format:json] [f]",
		"greet a --to b":                        "greet: map[to:b] [a]",
		"gc f c1/eth0 --none c2 --added":        "gc: map[added:true none:true] [f c1/eth0 c2]",
		"capture a -o f":                        "capture: map[output:f] [a]",
		"completion bash":                       "completion: map[] [bash]",
		"plan f --id":                           "flag needs an argument: --id",
		"plan f --nonsense x":                   "unknown flag --nonsense",
		"plan --= f":                            "unknown flag --",
		"lab up --nodes 2000000000000000000000": `invalid value "2000000000000000000000" for --nodes: value out of range`,
		"drops --for 1":                         `invalid value "1" for --for: parse error`,
		"capture -o f --output g":               "--output and -o are the same flag: give one of them",
		"lab nonsense":                          `"nonsense" is not one of its verbs: up, status, down, forward`,
	} {
		p := Process{Table: testTable()}
		v, args := p.root().descend(strings.Fields(in))
		c, err := v.invocation(t.Context(), args)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			values := map[string]string{}
			for name, g := range c.given {
				values[name] = g.value
			}
			got = fmt.Sprintf("%s: %v %v", v.name, values, c.args)
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestPages: each verb has a page and a function, or verbs of its own.
func TestPages(t *testing.T) {
	p := Process{Table: testTable()}
	runs := p.runs()
	p.root().each(func(v *verb) {
		if v.run == nil && len(v.verbs) == 0 || v.usage == "" {
			t.Errorf("%s: no function, or no usage", v.name)
		}
		delete(runs, v.name)
	})
	if len(runs) > 0 {
		t.Errorf("no page: %v", slices.Sorted(maps.Keys(runs)))
	}
	for verb, flags := range map[string]map[string]string{
		"install":        {"dir": defaultPluginDir, "conf-dir": defaultConfDir},
		"uninstall":      {"dir": defaultPluginDir, "conf-dir": defaultConfDir},
		"migrate multus": {"dir": defaultPluginDir, "conf-dir": defaultConfDir},
		"lab up":         {"dir": lab.DefaultDir},
		"capture":        {"snaplen": strconv.Itoa(maxSnaplen)},
	} {
		v, _ := p.root().descend(strings.Fields(verb))
		for name, want := range flags {
			if o := v.option(name); o == nil || o.value != want {
				t.Errorf("%s --%s: %+v, want %s", verb, name, o, want)
			}
		}
	}
	for _, name := range runtimeNames() {
		if o := p.root().find("install").option("runtime"); !strings.Contains(o.usage, name) {
			t.Errorf("install --runtime: %q lacks %s", o.usage, name)
		}
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

// FuzzParse: for any line, parsing neither loses nor adds an argument.
func FuzzParse(f *testing.F) {
	f.Add("plan f --id x -- --json")
	f.Add("state export --format= - --")
	f.Add("--= --- - ''")
	f.Fuzz(func(t *testing.T, line string) {
		p := Process{Table: testTable()}
		v, args := p.root().descend(strings.Split(line, " "))
		c, err := v.invocation(t.Context(), args)
		if err != nil {
			return
		}
		rest := args
		for _, word := range c.args {
			i := slices.Index(rest, word)
			if i < 0 {
				t.Fatalf("%q has the arguments %q", line, c.args)
			}
			rest = rest[i+1:]
		}
	})
}
