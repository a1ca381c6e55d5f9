package agent

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cnibox/cnibox/store/cluster/web"
)

// policyReader is a registry that knows the NetworkPolicies that select pods of this node.
type policyReader interface {
	Policies(ctx context.Context) ([]string, error)
}

// policyInterval is the mean time between two readings of the policies. Each agent reads all of
// them, and agents that start together read them again at different times.
const policyInterval = time.Hour

// warnPolicies warns once of each NetworkPolicy that selects pods of this node, because cnibox does not
// enforce it. Without the right to read policies it does nothing.
func (a *agent) warnPolicies(ctx context.Context) {
	r, ok := a.registry.Registry.(policyReader)
	if !ok {
		return
	}
	warned := map[string]bool{}
	wait := web.Backoff{Min: time.Minute, Max: policyInterval}
	for ctx.Err() == nil {
		names, err := r.Policies(ctx)
		least := time.Duration(0)
		if err != nil {
			a.log.Debug("cannot read the network policies", "error", err)
		} else {
			wait.Reset()
			least = policyInterval/2 + rand.N(policyInterval)
		}
		var fresh []string
		for _, n := range names {
			if !warned[n] {
				warned[n] = true
				fresh = append(fresh, n)
			}
		}
		if len(fresh) > 0 {
			a.log.Warn("NetworkPolicies select pods of this node, and cnibox does not enforce them: they have no effect unless another program does", "policies", strings.Join(fresh, " "))
		}
		_ = wait.Wait(ctx, least)
	}
}
