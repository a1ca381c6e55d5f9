package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/roles/see/lint"
)

const (
	whereabouts    = "whereabouts"
	kubeconfigFlag = "kubeconfig-file"
)

// lookWhereabouts are the steps from whereabouts. Its pools are of the whole cluster. When they are taken over,
// whereabouts refuses ADD on all nodes. The agent of each node makes leases for the node's containers.
func (m *migrator) lookWhereabouts() ([]step, error) {
	if err := m.findWhereabouts(); err != nil {
		return nil, err
	}
	pools, err := m.poolSteps(false, step{
		Name: "pools", What: "cnibox has the pools of whereabouts",
		Why: "whereabouts refuses ADD from then on, so no address is given out by both programs",
		do: func() error {
			t, err := m.takeover()
			if err == nil {
				err = t.Import(m.c.Context)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	agent := step{
		Name: "agent", State: stepTodo, What: "make leases for the containers that have addresses of whereabouts on this node",
		Why: "DEL of these containers then frees their addresses", do: func() error {
			err := ranges.Refresh(m.c.Context, m.h)
			m.refreshed = err == nil
			return err
		},
	}
	if m.refreshed {
		agent.State, agent.What = stepDone, "the agent has made leases for the containers of this node"
	}
	plugins, err := m.pluginSteps()
	return append(append(pools, agent), plugins...), err
}

// findWhereabouts returns an error if nothing shows that whereabouts is or was on this node. An administrator's kubeconfig also shows it,
// because the pools are of the cluster.
func (m *migrator) findWhereabouts() error {
	if !m.record.Started.IsZero() || m.c.String(kubeconfigFlag) != "" {
		return nil
	}
	f, err := plugindir.Open(m.dir, m.Executable).Look(whereabouts)
	if err != nil || f.Standing == plugindir.Foreign {
		return err
	}
	conf := filepath.Join(m.record.ConfDir, "whereabouts.d")
	if _, err := os.Stat(conf); err == nil {
		return nil
	}
	found := false
	err = m.eachNetwork(func(_ string, raw []byte) error {
		found = found || slices.Contains(lint.Types(raw), whereabouts)
		return nil
	})
	if err != nil || found {
		return err
	}
	return fmt.Errorf("there is no whereabouts on this node: %s has no plugin whereabouts of another program, no network in %s has its type, and there is no %s",
		m.dir, m.record.ConfDir, conf)
}

// backWhereabouts are the steps to whereabouts.
func (m *migrator) backWhereabouts() ([]step, error) {
	restore, err := m.restoreStep()
	if err != nil {
		return nil, err
	}
	pools, err := m.poolSteps(true, step{
		Name: "pools", What: "whereabouts has its pools", Why: "whereabouts then knows the addresses that are in use", do: m.returnPools,
	})
	return append([]step{restore}, pools...), err
}

// poolSteps returns the step for the pools of the cluster, or none without an administrator's kubeconfig.
func (m *migrator) poolSteps(back bool, s step) ([]step, error) {
	if m.c.String(kubeconfigFlag) == "" {
		return nil, nil
	}
	t, err := m.takeover()
	if err != nil {
		return nil, err
	}
	names, addresses, err := t.Remaining(m.c.Context, back)
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0:
		s.State = stepDone
	case len(m.waiting) > 0:
		s.State, s.What = stepManual, fmt.Sprintf("wait up to four minutes for the agents of %s, which return their blocks", strings.Join(m.waiting, ", "))
	case back:
		s.State, s.What = stepTodo, "return "+strings.Join(names, ", ")+" to whereabouts"
	default:
		s.State, s.What = stepTodo, fmt.Sprintf("take over %s with %s", strings.Join(names, ", "), counted(addresses, "address"))
	}
	return []step{s}, nil
}

// returnPools returns the pools, if the agents of all nodes have returned their blocks. This node's agent does so at once.
func (m *migrator) returnPools() error {
	t, err := m.takeover()
	if err != nil {
		return err
	}
	m.waiting, err = t.Export(m.c.Context)
	if err == nil && len(m.waiting) > 0 {
		if err := ranges.Refresh(m.c.Context, m.h); err != nil {
			return err
		}
		m.waiting, err = t.Export(m.c.Context)
	}
	return err
}

func (m *migrator) takeover() (*ranges.Takeover, error) {
	return ranges.NewTakeover(m.c.String(kubeconfigFlag), m.c.String("range-namespace"))
}
