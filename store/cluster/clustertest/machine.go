package clustertest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// Machine is a machine with a state that outlives its agents.
type Machine struct {
	o    cluster.OwnerOptions
	kept cluster.OwnerState
	// saves counts the calls of Save. With killAt, the agent dies in that call, before or after the state is saved.
	saves, killAt int
	after         bool
}

// errKilled is the value of the panic of a killed agent.
type errKilled struct{}

// NewMachine returns a machine with a name in the registry. former are the pod networks that it had.
func NewMachine(name string, former ...netip.Prefix) *Machine {
	return &Machine{
		o:    cluster.OwnerOptions{Node: name, Host: "host-of-" + name, Machine: "machine of " + name, Boot: "boot-1"},
		kept: cluster.OwnerState{Former: former},
	}
}

// Owner returns the Owner of a new agent of the machine.
func (m *Machine) Owner(tb testing.TB) *cluster.Owner {
	tb.Helper()
	o := m.o
	o.State = m.kept
	o.Save = func(_ context.Context, s cluster.OwnerState) error {
		m.saves++
		dies := m.saves == m.killAt
		if !dies || m.after {
			m.kept = s
		}
		if dies {
			panic(errKilled{})
		}
		return nil
	}
	return cluster.NewOwner(o)
}

// clone returns a machine with a copy of the disk, and the same host name. It has its own boot, except if it was
// cloned while it ran.
func (m *Machine) clone(boot string) *Machine {
	return (&Machine{o: m.o, kept: m.kept}).boot(boot)
}

func (m *Machine) boot(id string) *Machine {
	m.o.Boot = id
	return m
}

// reinstalled returns a machine with the same name and an empty disk.
func (m *Machine) reinstalled() *Machine {
	n := NewMachine(m.o.Node)
	n.o.Machine += " after " + m.o.Machine
	return n.boot("boot-of-new-disk")
}

// acquireOrDie publishes a node. It reports whether the agent was killed.
func acquireOrDie(ctx context.Context, r cluster.Registry, want cluster.Node) (n cluster.Node, err error, killed bool) {
	defer func() {
		if v := recover(); v != nil {
			if _, killed = v.(errKilled); !killed {
				panic(v)
			}
		}
	}()
	n, err = r.Acquire(ctx, want)
	return n, err, false
}

// at returns the i-th node with another address.
func at(i, host int) cluster.Node {
	n := node(i)
	n.PublicIP = netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", host))
	return n
}

// machine returns the machine of the node of that name.
func (w *World) machine(name string) *Machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.machines == nil {
		w.machines = map[string]*Machine{}
	}
	m := w.machines[name]
	if m == nil {
		m = NewMachine(name)
		w.machines[name] = m
	}
	return m
}

// open starts the agent of a node.
func (w *World) open(tb testing.TB, name string) cluster.Registry {
	tb.Helper()
	return w.start(tb, w.machine(name))
}

// start starts an agent of a machine.
func (w *World) start(tb testing.TB, m *Machine) cluster.Registry {
	tb.Helper()
	r := w.Open(tb, m.o.Node, m.Owner(tb))
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

// same reports whether two records are equal except for their authors.
func same(a, b *cluster.Node) bool {
	c := *a
	c.Author = b.Author
	return c.Same(b)
}
