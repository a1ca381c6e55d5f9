package doctor

import (
	"errors"
	"time"
)

// policyChecks look at network policies on a node whose agent enforces them.
func policyChecks() []Check {
	const reads = "policy.json and the node's mark; the agent's socket; nftables"
	return []Check{
		{ID: "policy-agent", Title: "the agent does not enforce changes of network policies", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			p := &f.Policies
			switch {
			case !p.On || p.AgentErr == nil:
			case p.Saved.IsZero():
				add("agent", "pods are not attached: "+errors.Join(p.SavedErr, p.AgentErr).Error(), f.agentFix())
			default:
				age := f.Now.Sub(p.Saved).Round(time.Second)
				add("agent", "the policies of "+age.String()+" ago are in force: "+p.AgentErr.Error(), f.agentFix())
			}
		}},
		{ID: "policy-saved", Title: "the saved network policies cannot be used: without the agent, pods are not attached", Reads: reads, Severity: Warning, find: func(f *Facts, add add) {
			if p := &f.Policies; p.On && p.AgentErr == nil && p.SavedErr != nil {
				add("policy.json", p.SavedErr.Error(), f.agentFix())
			}
		}},
		{ID: "policy-table", Title: "network policies are not in force: the kernel lacks their rules", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			switch p := &f.Policies; {
			case p.On && !p.HasTable && (p.AgentErr == nil || !p.Saved.IsZero()):
				add("nftables table inet cnibox_policy", "it does not exist", f.agentFix())
			case p.IsFlushed:
				add("nftables table inet cnibox_policy", "it has no rules, so the node forwards no packet", f.agentFix())
			}
		}},
		{ID: "policy-element", Title: "network policies are not in force: the kernel lacks pods' elements", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			if p := &f.Policies; p.HasTable && len(p.Lost) > 0 {
				add("nftables table inet cnibox_policy", few(p.Lost), "cnibox repair")
			}
		}},
		{ID: "policy-labels", Title: "pods choose labels that network policies select by", Reads: "the files in the runtimes' directories, as 'cnibox lint'", Severity: Warning, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				if n.PolicyLabels != "" {
					add(n.Path, n.PolicyLabels, "cnibox lint "+n.Path)
				}
			}
		}},
		{ID: "policy-unknown", Title: "pods are denied everything, because the agent does not know them", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			if p := &f.Policies; len(p.Denied) > 0 {
				add("agent", few(p.Denied), "cnibox policy list")
			}
		}},
	}
}
