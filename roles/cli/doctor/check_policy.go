package doctor

import "time"

// policyChecks look at network policies on a node whose agent enforces them.
func policyChecks() []Check {
	const reads = "policy.json; the agent's socket; nftables"
	return []Check{
		{ID: "policy-agent", Title: "the agent does not enforce changes of network policies", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			p := &f.Policies
			switch {
			case !p.On || p.AgentErr == nil:
			case p.Saved.IsZero():
				add("agent", "the policies were never read, and pods are not attached: "+p.AgentErr.Error(), "systemctl restart cnibox-agent")
			default:
				age := f.Now.Sub(p.Saved).Round(time.Second)
				add("agent", "the policies of "+age.String()+" ago are in force: "+p.AgentErr.Error(), "systemctl restart cnibox-agent")
			}
		}},
		{ID: "policy-table", Title: "network policies are not in force: the kernel lacks their rules", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			if p := &f.Policies; p.On && !p.Saved.IsZero() && !p.HasTable {
				add("nftables table inet cnibox_policy", "it does not exist", "systemctl restart cnibox-agent")
			}
		}},
		{ID: "policy-unknown", Title: "pods are denied everything, because the agent does not know them", Reads: reads, Severity: Error, find: func(f *Facts, add add) {
			if p := &f.Policies; len(p.Denied) > 0 {
				add("agent", few(p.Denied), "cnibox policy list")
			}
		}},
	}
}
