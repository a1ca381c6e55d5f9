package nodeipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// daemon is what outlives terms.
type daemon struct {
	log             *slog.Logger
	lease, identity string
	// cloud is nil unless the cloud gives the pod networks.
	cloud *cloudNode
	// leading is nil unless this process leads.
	leading atomic.Pointer[controller]

	mu     sync.Mutex
	holder string
	err    error
}

// seen stores the holder of the Lease, or why it is not known.
func (d *daemon) seen(holder string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && d.err == nil {
		d.log.Warn("cannot use the lease", "lease", d.lease, "error", err)
	}
	d.holder, d.err = holder, err
}

// status is the answer on the socket.
type status struct {
	Lease    string `json:"lease"`
	Identity string `json:"identity"`
	Leader   bool   `json:"leader"`
	// Holder is the leader's identity, or empty.
	Holder string `json:"holder"`
	// Error is why the Lease or the Nodes cannot be read.
	Error string `json:"error,omitempty"`
	// Synced is true if the leader has read all Nodes. The other fields are the leader's.
	Synced   bool      `json:"synced"`
	Networks []metrics `json:"networks"`
	Nodes    int       `json:"nodes"`
	// Waiting are the nodes without pod networks.
	Waiting int `json:"waiting"`
	// Node is set if the cloud gives its pod networks.
	Node     string         `json:"node,omitempty"`
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// Faults are the nodes that need an operator, at most maxFaults.
	Faults []nodeFault `json:"faults"`
}

// nodeFault is why a node, or a ClusterCIDR, needs an operator.
type nodeFault struct {
	Node  string `json:"node,omitempty"`
	Range string `json:"range,omitempty"`
	Error string `json:"error"`
}

// maxFaults bounds the answer.
const maxFaults = 1000

func (d *daemon) status() *status {
	d.mu.Lock()
	s := &status{Lease: d.lease, Identity: d.identity, Holder: d.holder, Networks: []metrics{}, Faults: []nodeFault{}}
	if d.err != nil {
		s.Error = d.err.Error()
	}
	d.mu.Unlock()
	if d.cloud != nil {
		d.cloud.describe(s)
	}
	if c := d.leading.Load(); c != nil {
		s.Leader = true
		c.describe(s)
	}
	return s
}

// describe adds the controller's part.
func (c *controller) describe(s *status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.errs[nodesPath], c.errs[rangesPath]); err != nil {
		s.Error = err.Error()
	}
	s.Synced, s.Nodes, s.Waiting = c.isSynced(), len(c.table.nodes), len(c.table.waiting())
	for _, b := range c.table.sets {
		s.Networks = append(s.Networks, b.metrics)
	}
	s.Faults = c.table.faults()
}

// faults returns the nodes that need an operator, in the order of names.
func (t *table) faults() []nodeFault {
	type holding struct {
		cidr netip.Prefix
		name string
	}
	var all []holding
	errs := map[string]error{}
	for name, n := range t.nodes {
		if err := t.why(n); err != nil {
			errs[name] = err
		}
		for _, p := range n.held {
			all = append(all, holding{p, name})
		}
	}
	sorting.Func(all, func(a, b holding) int {
		if c := a.cidr.Compare(b.cidr); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	for i, last := 1, 0; i < len(all); i++ {
		a, b := all[last], all[i]
		switch {
		case !a.cidr.Overlaps(b.cidr):
			last = i
		case a.name != b.name:
			errs[b.name] = errors.Join(errs[b.name], fmt.Errorf("spec.podCIDRs: %s overlaps %s of node %s: delete one of the Nodes, and it gets another", b.cidr, a.cidr, a.name))
		}
	}
	out := make([]nodeFault, 0, min(len(errs), maxFaults))
	for name, err := range errs {
		out = append(out, nodeFault{Node: name, Error: err.Error()})
	}
	for _, r := range t.ranges {
		if r.fault != nil {
			out = append(out, nodeFault{Range: r.name, Error: r.fault.Error()})
		}
	}
	sorting.Func(out, func(a, b nodeFault) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Range, b.Range))
	})
	return out[:min(len(out), maxFaults)]
}

// statusTime is the longest wait for an answer.
const statusTime = 10 * time.Second

// errNotWorking means that the daemon cannot assign pod networks.
var errNotWorking = errors.New("nodeipam does not work")

// askStatus requests the status of the daemon.
func askStatus(ctx context.Context, path string) (s *status, err error) {
	ctx, stop := context.WithTimeout(ctx, statusTime)
	defer stop()
	err = service.Ask(ctx, path, service.Status, nil, service.Into(&s))
	if errors.Is(err, service.ErrAbsent) {
		return nil, fmt.Errorf("no nodeipam runs here: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer of nodeipam: %w", err)
	}
	return s, nil
}

// verbs returns the role's commands.
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{
			Name: "nodeipam status", Help: "show the leader, the cluster networks and the nodes that need an operator", Example: "nodeipam status --json",
			Flags: []roles.Flag{{Name: "socket", Help: "path of the daemon's socket; default: nodeipam.sock in the run directory"}},
			Run: func(ctx context.Context, h *roles.Host, flags map[string]string, _ []string) (any, error) {
				s, err := askStatus(ctx, socketPath(h, flags["socket"]))
				if err != nil {
					return nil, err
				}
				if s.Error != "" {
					err = fmt.Errorf("%w: %s", errNotWorking, s.Error)
				}
				return s, err
			},
		},
		{
			Name: "nodeipam plan", Help: "calculate how many nodes and pods a cluster network has room for",
			Flags: process.VerbFlags((&planSettings{}).register()), Run: plan, Example: "nodeipam plan --cluster-cidr 10.244.0.0/16",
		},
	}
}

// Table shows the cluster networks, which only the leader knows, or the leader.
func (s *status) Table() (head []string, rows [][]string) {
	if !s.Leader && s.Node == "" {
		return []string{"LEADER", "LEASE"}, [][]string{{cmp.Or(s.Holder, "-"), s.Lease}}
	}
	for i := range s.Networks {
		m := &s.Networks[i]
		rows = append(rows, []string{
			m.ClusterCIDR.String(), strconv.Itoa(m.Max), strconv.Itoa(m.Used), strconv.Itoa(m.Max - m.Used),
			strconv.Itoa(m.Allocations), strconv.Itoa(m.Releases),
		})
	}
	return []string{"CLUSTER NETWORK", "BLOCKS", "USED", "FREE", "ALLOCATIONS", "RELEASES"}, rows
}

// String returns what the table does not show.
func (s *status) String() string {
	holder := s.Holder
	if holder == "" {
		holder = "no process"
	}
	text := fmt.Sprintf("%s leads (lease %s)", holder, s.Lease)
	if s.Leader {
		text = fmt.Sprintf("this process leads (lease %s): %d nodes, %d without pod networks", s.Lease, s.Nodes, s.Waiting)
		if !s.Synced {
			text = fmt.Sprintf("this process leads (lease %s) and reads the nodes", s.Lease)
		}
	}
	if s.Node != "" {
		text = fmt.Sprintf("node %s has the pod networks %v from its cloud", s.Node, s.PodCIDRs)
	}
	if s.Error != "" {
		text += "\nerror: " + s.Error
	}
	for _, f := range s.Faults {
		what := "node " + f.Node
		if f.Node == "" {
			what = "ClusterCIDR " + f.Range
		}
		text += fmt.Sprintf("\n%s: %s", what, f.Error)
	}
	return text
}
