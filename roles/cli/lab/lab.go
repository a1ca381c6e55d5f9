// Package lab makes a cluster of this one machine: nodes and their pods are
// network namespaces, the wire between the nodes is a bridge in a namespace of
// its own, and each node runs the agent, with a run and a state directory of its
// own. Nothing of the machine's own network is touched.
//
// The agents are processes of this very program, started in their nodes'
// namespaces; pods are attached by the program's own `cnibox add`, which
// executes the plugins as a runtime does. No other program is run.
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
	// ErrInvalid: a lab cannot be as it is asked to be.
	ErrInvalid = errors.New("invalid")
	// ErrUp: there is a lab already.
	ErrUp = errors.New("a lab is up")
	// ErrDown: there is no lab.
	ErrDown = errors.New("no lab is up")
)

// DefaultDir is where a lab keeps what it needs.
const DefaultDir = "/run/cnibox-lab"

// Bounds of a lab, which fit its networks.
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
	// Start starts a process in a namespace that goes on after this one.
	Start(ns *netops.Namespace, env, args []string, log *os.File) (int, error)
	// Output runs a process in a namespace to its end.
	Output(ctx context.Context, ns *netops.Namespace, env, args []string) ([]byte, error)
}

// Lab is a place for a lab, up or not.
type Lab struct {
	Dir  string
	Self Self
	Net  *netops.Net
}

// Plan is what a lab is to be.
type Plan struct {
	// Nodes and Pods count the nodes, and the pods of each.
	Nodes, Pods int
	// Registry is "dir", or "etcd" at the Endpoint.
	Registry, Endpoint string
}

// Check tells what cannot be.
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

// State is a lab that is up, or on its way: everything that it makes is recorded
// before it is made.
type State struct {
	Registry string `json:"registry"`
	Endpoint string `json:"endpoint,omitempty"`
	// Switch is the namespace of the bridge that connects the nodes.
	Switch string `json:"switch"`
	Nodes  []Node `json:"nodes"`
}

// Node is one node: the name in the registry, and the namespace that plays it.
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

// network holds the pods' networks, one of 256 addresses for each node from the
// first on; underlay connects the nodes, from .101 on. Both are those of the
// picture that every description of flannel shows.
const (
	network = "10.244.0.0/16"
	uplink  = "eth1"
	bridge  = "br0"
)

// planned is the state of a lab that is to be made.
func (l *Lab) planned(p Plan) *State {
	s := &State{Registry: p.Registry, Endpoint: p.Endpoint, Switch: "lab-switch"}
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

// namespaces are all that the lab has, the pods' first.
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

// run is the node's run directory.
func (n *Node) run() string { return filepath.Join(n.Dir, "run") }

func (n *Node) log() string { return filepath.Join(n.Dir, "agent.log") }

func (l *Lab) forwarderLog() string { return filepath.Join(l.Dir, "forward.log") }

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

func (n *Node) overlayFile() string { return filepath.Join(n.run(), store.OverlayFile) }

// env is the environment of the node's processes.
func (l *Lab) env(n *Node) []string {
	return []string{
		"CNIBOX_RUN_DIR=" + n.run(), "CNIBOX_STATE_DIR=" + filepath.Join(n.Dir, "state"), "CNI_PATH=" + l.plugins(),
	}
}

func (l *Lab) plugins() string { return filepath.Join(l.Dir, "bin") }

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

// Load reads what a lab is; ErrDown when there is none.
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
			return nil, fmt.Errorf("read %s: %w: %q is no namespace of a lab", path, ErrInvalid, name)
		}
	}
	return &s, nil
}
