// Package doctor finds what is wrong with the networks of a node. It reads the node once into
// [Facts], and each [Check] is a function of these. It changes nothing.
package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// Severity is the effect of a finding.
type Severity string

const (
	// Error means that pods have no network, or that the next pod will have none.
	Error Severity = "error"
	// Warning means that something will fail later, or fails in some cases.
	Warning Severity = "warning"
	// Info does not affect the network.
	Info Severity = "info"
)

// rank orders severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// Finding is one fault of the node.
type Finding struct {
	Severity Severity `json:"severity"`
	// ID is the check's, What its title.
	ID   string `json:"id"`
	What string `json:"what"`
	// Object is the faulty object, Evidence what was read of it.
	Object   string `json:"object"`
	Evidence string `json:"evidence"`
	// Fix is the command that mends it. Safe is true if `cnibox doctor --fix` does it. See is a command that shows more of a fault for
	// which no Fix is known.
	Fix  string `json:"fix"`
	See  string `json:"see,omitempty"`
	Safe bool   `json:"safe,omitempty"`
	// Attachments are those that the finding is about.
	Attachments []store.Key `json:"attachments,omitempty"`
}

// Next returns what to do next: the command that mends the fault, or else one that shows more of it.
func (f *Finding) Next() string { return cmp.Or(f.Fix, f.See) }

// Same reports whether two findings are about the same fault of a node.
func (f *Finding) Same(g *Finding) bool { return f.ID == g.ID && f.Object == g.Object }

// Report is the result of all checks.
type Report struct {
	Node    string    `json:"node"`
	Time    time.Time `json:"time"`
	Program string    `json:"program"`
	// Passed is the number of checks that found nothing.
	Passed int `json:"passed"`
	// Networks are the networks that the runtimes use.
	Networks []Used    `json:"networks"`
	Findings []Finding `json:"findings"`
}

// Used is the network that a runtime gives to pods.
type Used struct {
	Runtime string `json:"runtime"`
	Network string `json:"network,omitempty"`
	File    string `json:"file,omitempty"`
	// Why says why it is this file.
	Why string `json:"why"`
}

// Worst returns the worst severity of the report, or "".
func (r *Report) Worst() Severity {
	if len(r.Findings) == 0 {
		return ""
	}
	return r.Findings[0].Severity
}

// Check is one kind of fault.
type Check struct {
	ID string
	// Title is the fault in a few words. Reads says where the facts are from.
	Title, Reads string
	Severity     Severity
	// Safe means that `cnibox doctor --fix` mends it.
	Safe bool
	find func(f *Facts, add add)
}

// add adds a finding.
type add func(object, evidence, fix string, of ...store.Key)

// Checks returns all checks.
func Checks() []Check {
	return slices.Concat(
		confChecks(), rangeChecks(), kubeconfigChecks(), pluginChecks(), stateChecks(), attachmentChecks(), recordChecks(),
		portChecks(), settingChecks(), filterChecks(), linkChecks(), agentChecks(), tunnelChecks(), policyChecks(),
	)
}

// Diagnose runs all checks.
func Diagnose(f *Facts) *Report {
	r := &Report{Node: f.Node, Time: f.Now, Program: f.Program, Networks: f.used(), Findings: []Finding{}}
	checks := Checks()
	i := slices.IndexFunc(checks, func(c Check) bool { return c.ID == unreadable })
	for _, c := range slices.Concat(checks[:i], checks[i+1:], checks[i:i+1]) { // the others read
		before := len(r.Findings)
		c.find(f, func(object, evidence, fix string, of ...store.Key) {
			safe := c.Safe && strings.HasPrefix(fix, "cnibox ")
			fix, harm := f.Records.Fix(fix, networksOf(of)...)
			if harm != "" {
				evidence += "; no command is safe: " + harm
			}
			r.Findings = append(r.Findings, Finding{
				Severity: c.Severity, ID: c.ID, What: c.Title, Object: object, Evidence: strings.ReplaceAll(evidence, "\n", "; "), Fix: fix, Safe: safe, Attachments: of,
			})
		})
		if len(r.Findings) == before {
			r.Passed++
		}
		r.Findings = append(r.Findings[:before], summarize(r.Findings[before:])...)
		for i := before; i < len(r.Findings); i++ {
			one := &r.Findings[i]
			one.Fix, one.See = advice.Split(one.Fix)
		}
	}
	sorting.Stable(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(lastResort(a.Fix), lastResort(b.Fix)), strings.Compare(a.ID, b.ID), strings.Compare(a.Object, b.Object))
	})
	return r
}

// lastResort orders commands that end a pod behind those that mend something: another finding of the same severity may be the cause.
func lastResort(fix string) int {
	if strings.HasPrefix(fix, deletePod) || strings.HasPrefix(fix, restartContainer) {
		return 1
	}
	return 0
}

// networksOf returns the networks of attachments.
func networksOf(all []store.Key) (networks []string) {
	for _, k := range all {
		networks = append(networks, k.Network)
	}
	return networks
}

// fewFindings is the number of findings that are listed one by one.
const fewFindings = 5

// summarize joins the findings of one check that are about more attachments than few, or have one fix: 250 pods can have the same fault.
func summarize(all []Finding) []Finding {
	byFix := map[string][]Finding{}
	for _, f := range all {
		fix := f.Fix
		if len(all) > fewFindings && len(f.Attachments) > 0 && !f.Safe {
			fix = "cnibox diff" // each pod has a command of its own
		}
		byFix[fix] = append(byFix[fix], f)
	}
	var out []Finding
	for _, fix := range slices.Sorted(maps.Keys(byFix)) {
		same := byFix[fix]
		if len(same) <= fewFindings {
			out = append(out, same...)
			continue
		}
		g := group{}
		for _, f := range same {
			g.texts, g.keys = append(g.texts, f.Object+": "+f.Evidence), append(g.keys, f.Attachments...)
		}
		one := same[0] // an object with a count would be another one in the next report
		one.Object, one.Evidence, one.Fix, one.Attachments = "several", g.evidence(), fix, g.keys
		out = append(out, one)
	}
	return out
}
