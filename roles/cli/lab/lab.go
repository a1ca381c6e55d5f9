// Package lab starts a cluster on one machine. Nodes and pods are network namespaces. The nodes are
// connected by a bridge in a separate namespace. Each node runs the agent with its own run and
// state directories. The machine's own network is not changed.
//
// The agents are processes of this program in the nodes' namespaces. Pods are attached with `cnibox
// add`, which executes the plugins like a runtime. No other program is executed.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

var (
	// ErrInvalid means that the requested lab is not possible.
	ErrInvalid = errors.New("invalid")
	// ErrUp means that a lab exists.
	ErrUp = errors.New("a lab is up")
	// ErrDown means that no lab exists.
	ErrDown = errors.New("no lab is up")
)

// DefaultDir is the default directory of a lab.
const DefaultDir = "/run/cnibox-lab"

// Limits of a lab, given by the size of its networks.
const (
	maxNodes = 100
	maxPods  = 50
)

// The files of a lab.
const (
	stateFile = "lab.json"
	listFile  = "lab.conflist"
	maxState  = 4 << 20
)

// Self runs this program again.
type Self interface {
	// Start starts a process in a namespace that continues after this one ends.
	Start(ns *netops.Namespace, env, args []string, log *os.File) (int, error)
	// Output runs a process in a namespace and returns its output.
	Output(ctx context.Context, ns *netops.Namespace, env, args []string) ([]byte, error)
	// Become replaces this process by one in a namespace, on a host of a name.
	Become(ns *netops.Namespace, host string, env, args []string) error
}

// Lab is a directory with or without a running lab.
type Lab struct {
	Dir  string
	Self Self
	Net  *netops.Net
}

// Plan describes the lab to start.
type Plan struct {
	// Nodes is the number of nodes. Pods is the number of pods on each.
	Nodes, Pods int
	// Registry is "dir", or "etcd" at the Endpoint.
	Registry, Endpoint string
	// Policy makes the agents enforce the network policies in policy.d.
	Policy bool
}

// Check reports an impossible plan.
func (p *Plan) Check() error {
	var faults []error
	if p.Nodes < 1 || p.Nodes > maxNodes {
		faults = append(faults, fmt.Errorf("%w: --nodes %d: give 1 to %d", ErrInvalid, p.Nodes, maxNodes))
	}
	if p.Pods < 0 || p.Pods > maxPods {
		faults = append(faults, fmt.Errorf("%w: --pods %d: give 0 to %d", ErrInvalid, p.Pods, maxPods))
	}
	switch p.Registry {
	case "dir":
		if p.Endpoint != "" {
			faults = append(faults, fmt.Errorf("%w: --etcd-endpoint: give --registry etcd with it", ErrInvalid))
		}
	case "etcd":
		if _, err := hostPort(p.Endpoint); err != nil {
			faults = append(faults, err)
		}
	default:
		faults = append(faults, fmt.Errorf("%w: --registry %q: give dir or etcd", ErrInvalid, p.Registry))
	}
	return errors.Join(faults...)
}

// State is a running or starting lab. Every object is recorded before it is made.
type State struct {
	Registry string `json:"registry"`
	Endpoint string `json:"endpoint,omitempty"`
	Policy   bool   `json:"policy,omitempty"`
	// Switch is the namespace of the bridge that connects the nodes.
	Switch string `json:"switch"`
	Nodes  []Node `json:"nodes"`
}

// Node is one node: its name in the registry and its namespace.
type Node struct {
	Name       string       `json:"name"`
	Netns      string       `json:"netns"`
	Address    netip.Prefix `json:"address"`
	PodNetwork netip.Prefix `json:"podNetwork"`
	// Dir has the node's files: run/, state/, agent.log, subnet.env.
	Dir  string `json:"dir"`
	Pods []Pod  `json:"pods"`
}

// Pod is one pod. Address is invalid until it is attached.
type Pod struct {
	Name    string     `json:"name"`
	Netns   string     `json:"netns"`
	Address netip.Addr `json:"address,omitzero"`
}

// network contains the pods' networks, a /24 for each node. underlay connects the nodes, whose
// addresses begin at .101. Both are from the diagram in flannel's documentation.
const (
	network = "10.244.0.0/16"
	uplink  = "eth1"
	bridge  = "br0"
)

// planned returns the state of a lab before it is made.
func (l *Lab) planned(p Plan) *State {
	s := &State{Registry: p.Registry, Endpoint: p.Endpoint, Policy: p.Policy, Switch: "lab-switch"}
	for i := range p.Nodes {
		n := Node{
			Name:       fmt.Sprintf("node%d", i+1),
			Address:    netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 17, 8, byte(101 + i)}), 24),
			PodNetwork: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24),
		}
		n.Netns = "lab-" + n.Name
		n.Dir = filepath.Join(l.Dir, "nodes", n.Name)
		for j := range p.Pods {
			name := fmt.Sprintf("%s-pod%d", n.Netns, j+1)
			n.Pods = append(n.Pods, Pod{Name: name, Netns: name})
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// namespaces returns all namespaces of the lab, the pods' first.
func (s *State) namespaces() []string {
	var out []string
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			out = append(out, p.Netns)
		}
	}
	for _, n := range s.Nodes {
		out = append(out, n.Netns)
	}
	return append(out, s.Switch)
}

// run returns the node's run directory.
func (n *Node) run() string { return filepath.Join(n.Dir, "run") }

func (n *Node) log() string { return filepath.Join(n.Dir, "agent.log") }

func (l *Lab) forwarderLog() string { return filepath.Join(l.Dir, "forward.log") }

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

func (n *Node) overlayFile() string { return filepath.Join(n.run(), store.OverlayFile) }

// env returns the environment of the node's processes.
func (l *Lab) env(n *Node) []string {
	return []string{
		"CNIBOX_RUN_DIR=" + n.run(), "CNIBOX_STATE_DIR=" + filepath.Join(n.Dir, "state"), "CNI_PATH=" + l.plugins(),
	}
}

func (l *Lab) plugins() string { return filepath.Join(l.Dir, "bin") }

// policies returns the directory of network policies.
func (l *Lab) policies() string { return filepath.Join(l.Dir, "policy.d") }

func (l *Lab) list() string { return filepath.Join(l.Dir, listFile) }

// open opens a namespace of the lab.
func (l *Lab) open(name string) (*netops.Namespace, error) {
	return l.Net.OpenNamespace(filepath.Join(netops.NamespaceDir, name))
}

func (l *Lab) save(s *State) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := smallfile.Replace(filepath.Join(l.Dir, stateFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("record the lab: %w", err)
	}
	return nil
}

// Load reads the state of a lab. It returns ErrDown if no lab exists.
func (l *Lab) Load() (*State, error) {
	path := filepath.Join(l.Dir, stateFile)
	b, err := smallfile.ReadOwn(path, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrDown, l.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the lab: %w", err)
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrInvalid, err)
	}
	for _, name := range s.namespaces() {
		if filepath.Base(name) != name || len(name) < 5 || name[:4] != "lab-" {
			return nil, fmt.Errorf("read %s: %w: %q is not a namespace of a lab", path, ErrInvalid, name)
		}
	}
	return &s, nil
}
