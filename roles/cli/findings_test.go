package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/see/doctor"
)

// TestProse: a finding is a paragraph no wider than the terminal, except for the command, which is on one line.
func TestProse(t *testing.T) {
	long := "cnibox repair && " + strings.Repeat("x", 100)
	r := &doctor.Report{Passed: 96, Findings: []doctor.Finding{
		{Severity: doctor.Error, ID: "route-missing", What: "a pod lost a route", Object: "web eth0 on pods", Evidence: "route default dev eth0 netns container: want via 10.244.1.1, have absent", Fix: long},
		{Severity: doctor.Info, ID: "rp-filter", What: "the node drops packets", Object: "flannel.1\x1b[2J", Evidence: "1", Fix: ""},
	}}
	const want = `
error: a pod lost a route (route-missing)
  web eth0 on pods: route default dev eth0 netns container: want via 10.244.1.1,
  have absent
  try: LONG

info: the node drops packets (rp-filter)
  "flannel.1\x1b[2J": 1
`
	var out, errs bytes.Buffer
	p := &Process{Stdout: &out, Stderr: &errs}
	if err := p.writeReport(r, style{prose: true}); err != nil || out.String() != strings.Replace(want, "LONG", long, 1) || errs.String() != "cnibox: doctor: 2 findings; the other 96 checks passed\n" {
		t.Errorf("%v\n%s%s", err, out.String(), errs.String())
	}
	out.Reset()
	if err := p.writeReport(r, style{}); err != nil || strings.Count(out.String(), "\n") != 3 || !strings.HasPrefix(out.String(), "SEVERITY\tCHECK\t") {
		t.Errorf("%v\n%s", err, out.String())
	}
	for text, lines := range map[string][]string{"": {""}, "ab cd ef": {"ab cd", "ef"}, "abcdefgh": {"abcdefgh"}, "  ab   cdefgh i": {"ab", "cdefgh", "i"}} {
		if have := wrapped(text, 6); strings.Join(have, "|") != strings.Join(lines, "|") {
			t.Errorf("%q: %q", text, have)
		}
	}
}
