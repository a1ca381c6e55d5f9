package doctor

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// Facts is everything that the checks look at.
type Facts struct {
	Node, Program string
	Now           time.Time
	// Unread are the facts that could not be read.
	Unread []Unread
	// Records keep fixes from removing what attachments need.
	Records *advice.Records

	Runtimes []Runtime
	// Netavark is true if podman does not use CNI.
	Netavark bool
	// Networks are the configurations in the directories of the runtimes. Plugins are the files
	// of the plugins that the used ones name.
	Networks    []*Network
	Plugins     []Plugin
	Kubeconfigs []Kubeconfig
	// Services are the ranges of Kubernetes' services that this node's manifests name.
	Services []netip.Prefix

	State State
	// Caches are the runtimes' cached results, Damaged the files that are none.
	Caches  map[string]*recovery.CacheEntry
	Damaged []string
	// Calls are CNI calls that take long.
	Calls []Call
	// Differences are those between the attachments and the kernel.
	Differences []Difference

	// Host is what the kernel says about the host's namespace.
	Host *view.Host
	// Restart is the command that starts the agent again. Empty means that of its unit.
	Restart  string
	Firewall Firewall
	// filters are what may drop packets of pods, or nil before podFilters was called.
	filters *podFilters
	// Listeners are sockets of the node at published ports.
	Listeners []attachment.PortListener
	Missing   map[string]string // features that the kernel does not have, and what needs them
	Overlay   Overlay
	Policies  Policies
	// DirErrors are the directories on full or read-only file systems.
	DirErrors map[string]error
}

// Unread is a fact that could not be read.
type Unread struct {
	What string
	Err  error
}

// Runtime is a container runtime of the node and what it does with networks.
type Runtime struct {
	Name string
	// Dir is the directory of its networks, Default the name of the network that it uses. Without
	// one it uses the first file.
	Dir, Default string
	// SkipsFaulty means that the runtime ignores faulty files. ListsOnly means that it reads files
	// that end in .conflist only.
	SkipsFaulty, ListsOnly bool
	// BuiltIn means that the runtime has a network without a file.
	BuiltIn    bool
	PluginDirs []string
	// Install is the command that makes it use this program's plugins.
	Install string
	// Delegate is the runtime that kubelet uses; the other fields are empty then.
	Delegate string

	// Network is the network that it uses, or nil. Why says why.
	Network *Network
	Why     string
}

// Network is one network's file.
type Network struct {
	Path, Name string
	// IsUnusable means that a runtime cannot use the file. Fault is why, or the first fault that lint found.
	IsUnusable bool
	Fault      string
	// Fix is the command for a Fault.
	Fix string
	// PolicyLabels is what lint says of annotations that are labels for network policies.
	PolicyLabels string
	// Types are the plugins in their order, also IPAM plugins and those of fused lists.
	Types  []string
	Bridge string
	// Egress are the addresses with which pods' packets leave the node.
	Egress  []netip.Addr
	Ranges  []Range
	Kube    []string // kubeconfigs
	Overlay bool     // the subnet comes from the agent
	// Features are those that it needs of the kernel.
	Features []string
	// OwnTypes is true if a plugin is a role of this program.
	OwnTypes bool
}

// Range is one address range of a network.
type Range struct {
	Subnet netip.Prefix
	// Size is the number of addresses, or 0 if it is large.
	Size   int
	Lo, Hi netip.Addr
}

// Plugin is the file that a runtime executes for a type.
type Plugin struct {
	Type, Runtime string
	// Path is empty if there is none in Dirs.
	Path string
	Dirs []string
	// Ours is true for a file of this program, Role for a type that it has.
	Ours, Role bool
	// Program names the program of the file.
	Program string
	// Current is true if the file is the running binary.
	Current, Dangling, Executable bool
	// Replaced is true if another program replaced a file of this program.
	Replaced bool
	// Home is true if the file is, or can be, in the directory of this program's plugins.
	Home bool
	// Install is the command that installs this program's plugins there, or makes the runtime search them.
	Install string
	// Writable is set if other users can replace the file. WritablePath is the file, or its directory.
	Writable     error `json:"-"`
	WritablePath string
}

// Kubeconfig is a kubeconfig that a network or the agent's service names.
type Kubeconfig struct {
	Path string
	Err  error `json:"-"`
	// Cert and Token are when the credentials end, or zero.
	Cert, Token time.Time
}

// State is this program's state.
type State struct {
	RunDir, StateDir string
	// Node and Keep are the errors of node.db and keep.db.
	Node, Keep error
	// Modes are files with a wrong owner or mode: the path, what is wrong, and the fix.
	Modes []Mode
	// Dump is empty if node.db cannot be read.
	Dump *store.Dump
}

// Call is a CNI call in progress.
type Call struct{ Plugin, What, Fix string }

// Mode is a file with a wrong owner or mode.
type Mode struct{ Path, Fault, Fix string }

// Difference is a difference between an attachment and its specification.
type Difference struct {
	Key store.Key
	Pod string
	// Of is nil for a difference that is not of an object.
	Of                 netops.Object `json:"-"`
	Object, Want, Have string
	// Fix is the command that mends it, or "" if the container must be restarted.
	Fix string
}

// Firewall are the rules of cnibox, and marks of others.
type Firewall struct {
	// Lost are our sets whose table or rules do not exist.
	Lost []string
	// Labelled are our elements and rules.
	Labelled []netops.Object
	// Unrecorded are our elements and rules that no attachment, cached result or interface explains.
	Unrecorded []netops.Object
	// KubeProxy is true if the rules of kube-proxy are there.
	KubeProxy bool
	// StrayTrace is true if a killed probe left its table.
	StrayTrace bool
}

// Policies is the node's part in network policy.
type Policies struct {
	// On is true if the node enforces policies. Saved is when its agent saved them last, or zero if SavedErr is why they cannot be used.
	On       bool
	Saved    time.Time
	SavedErr error
	// HasTable is true if the kernel has the rules.
	HasTable bool
	// AgentErr is why the agent does not answer.
	AgentErr error
	// Denied are pods that are denied everything, because the agent does not know them. Lost are those whose elements another program deleted.
	// IsFlushed is true if the table has no rules.
	Denied, Lost []string
	IsFlushed    bool
}

// Overlay is the node's part in a network of several nodes.
type Overlay struct {
	// File is the agent's hand-off file, Subnets are those of flannel's subnet.env.
	File    *store.Overlay
	FileErr error
	BootID  string
	Env     []netip.Prefix
	// Agent is nil if none answers. AgentErr is why.
	Agent    *Agent
	AgentErr error
}

// Agent is what `cnibox agent status --json` prints.
type Agent struct {
	Registry      string             `json:"registry"`
	RegistryError string             `json:"registryError"`
	RegistrySince time.Time          `json:"registryErrorSince"`
	Backend       string             `json:"backend"`
	Ready         bool               `json:"ready"`
	Reason        string             `json:"reason"`
	Warnings      []string           `json:"warnings"`
	Interface     string             `json:"interface"`
	Peers         store.OverlayPeers `json:"peers"`
	// Checksums is set if packets of other nodes have wrong checksums.
	Checksums *struct {
		Evidence string `json:"evidence"`
		Fix      string `json:"fix"`
	} `json:"wrongChecksums"`
	// Unheard are nodes that do not answer through the tunnel.
	Unheard []struct {
		Peer  string    `json:"peer"`
		Since time.Time `json:"since"`
	} `json:"unheard"`
	IPv4  *AgentFamily `json:"ipv4"`
	IPv6  *AgentFamily `json:"ipv6"`
	Nodes []Peer       `json:"nodes"`
}

// AgentFamily is one address family of an Agent.
type AgentFamily struct {
	Device string     `json:"device"`
	Local  netip.Addr `json:"local"`
	MTU    int        `json:"mtu"`
}

// Peer is another node in one address family.
type Peer struct {
	Peer string `json:"peer"`
	// VTEP is the node's public address.
	VTEP netip.Addr `json:"vtep"`
	// Subnet is the node's pod network, MAC that of its device.
	Subnet    netip.Prefix `json:"subnet"`
	MAC       string       `json:"mac"`
	Route     bool         `json:"route"`
	FDB       bool         `json:"fdb"`
	Neighbour bool         `json:"neighbour"`
	Direct    bool         `json:"direct"`
	// Loss is how many percent of the last requests through the tunnel were not answered.
	Loss int `json:"lossPercent"`
	// Key is the public key with WireGuard, which has no FDB and Neighbour.
	Key   string `json:"publicKey"`
	State string `json:"state"`
	Error string `json:"error"`
}

// used lists what the runtimes use.
func (f *Facts) used() []Used {
	out := []Used{}
	for _, r := range f.Runtimes {
		u := Used{Runtime: r.Name, Why: r.Why}
		if r.Network != nil {
			u.Network, u.File = r.Network.Name, r.Network.Path
		}
		out = append(out, u)
	}
	return out
}

// link returns a link of the host, or nil.
func (f *Facts) link(name string) *netops.LinkInfo {
	links := f.links()
	for i := range links {
		if links[i].Name == name {
			return &links[i]
		}
	}
	return nil
}

// unread notes that a fact could not be read, once.
func (f *Facts) unread(what string, err error) {
	known := func(u Unread) bool { return u.What == what && u.Err.Error() == err.Error() }
	if err != nil && !slices.ContainsFunc(f.Unread, known) {
		f.Unread = append(f.Unread, Unread{what, err})
	}
}

// links returns the links of the host.
func (f *Facts) links() []netops.LinkInfo {
	all, err := f.Host.Links()
	f.unread("interfaces", err)
	return all
}

// routes returns the routes of the host.
func (f *Facts) routes() []netops.Route {
	all, err := f.Host.Routes()
	f.unread("routes", err)
	return all
}

// sysctl returns a setting of the host, or "" if it does not exist.
func (f *Facts) sysctl(key string) string {
	value, err := f.Host.Sysctl(key)
	f.unread("sysctls", err)
	return value
}

// attachments returns the recorded attachments.
func (f *Facts) attachments() []store.Attachment {
	if f.State.Dump == nil {
		return nil
	}
	return f.State.Dump.Attachments
}

// subnets returns the node's pod networks: those of the agent, or else those of flannel's file.
func (o *Overlay) subnets() (all []netip.Prefix) {
	if o.File == nil || o.File.BootID != o.BootID {
		return o.Env
	}
	for _, f := range []*store.OverlayFamily{o.File.IPv4, o.File.IPv6} {
		if f != nil {
			all = append(all, f.Subnet.Masked())
		}
	}
	return all
}

// serves reports whether calls for the overlay's networks can work.
func (o *Overlay) serves() bool {
	if o.FileErr != nil || o.File == nil && len(o.Env) == 0 {
		return false
	}
	return o.File == nil || o.File.Ready && (o.Agent == nil || o.Agent.Ready)
}
