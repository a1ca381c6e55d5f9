package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// registryClient is a registry and its properties that the agent needs.
type registryClient struct {
	cluster.Registry
	// name is the kind and the location of the registry, for people. node is this node's name in
	// it.
	name, node string
	// skipReady is true if the registry is not informed that the pod network works.
	skipReady bool
	// config is the network's configuration from a file of the node. It is nil if the registry
	// holds the configuration.
	config *cluster.Config
	// anonymous is true if a node has no name in the registry except the one that Acquire returns.
	anonymous bool
	// assignsCIDRs is true if the registry chooses the pod networks and accepts no request for one.
	assignsCIDRs bool
	// owner decides which record is this node's. It is nil with -ranges-only.
	owner *cluster.Owner
	// object is set if nodeipam assigns the pod networks in a registry without an API server.
	object *nodeObject
}

// Acquire publishes this node, with the pod networks that nodeipam has assigned if it does so.
func (c *registryClient) Acquire(ctx context.Context, want cluster.Node) (got cluster.Node, err error) {
	if c.object != nil {
		want.PodCIDRs, err = c.object.assigned(ctx)
		if err != nil {
			return want, err
		}
	}
	return c.Registry.Acquire(ctx, want)
}

// Release removes this node's record, and its object.
func (c *registryClient) Release(ctx context.Context) error {
	err := c.Registry.Release(ctx)
	if err == nil && c.object != nil {
		err = c.object.client.Delete(ctx, c.object.path())
	}
	return err
}

// clusterDir is the default directory of the registry, below the state directory.
const clusterDir = "cluster"

// open opens the registry of the flags. former has the addresses that identify the node in etcd.
func (s *settings) open(ctx context.Context, h *roles.Host, former remembered) (*registryClient, error) {
	warn := func(text string) { h.Log.Warn(text) }
	r := &s.registry
	switch {
	case r.kube:
		return s.openKube(ctx, h, warn)
	case len(r.etcd.Endpoints) > 0:
		return s.openEtcd(ctx, h, former, warn)
	}
	path := r.dir
	if path == "" {
		path = filepath.Join(filepath.Dir(h.Store.KeepPath()), clusterDir)
	}
	node, err := s.name(h.Env)
	if err != nil {
		return nil, err
	}
	owner := s.openOwner(ctx, h, node)
	o := dir.Options{Dir: path, Name: node, Owner: owner, Warn: warn}
	if s.rangesOnly && (memory{h}).load(ctx).RangesDir != path {
		o.Found = func() { memory{h}.save(ctx, func(r *remembered) { r.RangesDir = path }) }
	}
	reg, err := dir.Open(o)
	return s.withObject(&registryClient{Registry: reg, node: node, owner: owner, name: "dir " + path}, reg), err
}

// openKube opens Kubernetes as the registry.
func (s *settings) openKube(ctx context.Context, h *roles.Host, warn func(string)) (*registryClient, error) {
	r := &s.registry
	config, err := &cluster.Config{}, error(nil)
	if !s.rangesOnly {
		config, err = readNetConf(s.netConf, warn)
	}
	if err != nil {
		return nil, err
	}
	client, err := s.kubeClient(h)
	if err != nil {
		return nil, err
	}
	node, err := s.nodeOfPod(ctx, h, client)
	if err != nil {
		return nil, err
	}
	owner := s.openOwner(ctx, h, node)
	reg, err := kube.Open(kube.Options{
		Client: client, Node: node, Owner: owner, Boot: h.Store.BootID(), Config: config, Prefix: r.annotations, Namespace: r.rangeNamespace,
	})
	return &registryClient{Registry: reg, node: node, owner: owner, name: "kube", config: config, assignsCIDRs: true, skipReady: !r.networkUnavailable}, err
}

// kubeClient returns a client of the API server.
func (s *settings) kubeClient(h *roles.Host) (*rest.Client, error) {
	return rest.Open(rest.Choose(s.registry.kubeconfig, s.registry.apiURL, func(name string) string { return process.Getenv(h.Env, name) }))
}

// nodeOfPod returns the name of this node's Node object. It comes from the flags or the
// environment, or else from the agent's own pod.
func (s *settings) nodeOfPod(ctx context.Context, h *roles.Host, client *rest.Client) (string, error) {
	pod, namespace := process.Getenv(h.Env, "POD_NAME"), process.Getenv(h.Env, "POD_NAMESPACE")
	if s.nodeName != "" || process.Getenv(h.Env, "NODE_NAME") != "" || pod == "" || namespace == "" {
		return s.name(h.Env)
	}
	var wait web.Backoff
	for {
		name, err := client.NodeName(ctx, namespace, pod)
		if err == nil || !errors.Is(err, cluster.ErrUnavailable) {
			return name, err
		}
		h.Log.Warn("this node's name is not known yet", "error", err)
		if err := wait.Wait(ctx, 0); err != nil {
			return "", err
		}
	}
}

// openEtcd opens etcd as the registry.
func (s *settings) openEtcd(ctx context.Context, h *roles.Host, former remembered, warn func(string)) (*registryClient, error) {
	node, err := s.name(h.Env)
	if err != nil {
		return nil, err
	}
	r := &s.registry
	o := r.etcd.Options()
	o.Node, o.Owner, o.PublicIP, o.PublicIPv6 = node, s.openOwner(ctx, h, node), former.PublicIP, former.PublicIPv6
	o.RenewMargin, o.Warn = r.renewMargin, warn
	reg, err := etcd.Open(o)
	return s.withObject(&registryClient{Registry: reg, node: node, owner: o.Owner, name: "etcd " + strings.Join(r.etcd.Endpoints, ","), anonymous: true}, reg), err
}

// withObject adds this node's object if nodeipam assigns the pod networks.
func (s *settings) withObject(c *registryClient, r objects.Registry) *registryClient {
	if s.registry.nodeipam {
		c.assignsCIDRs, c.object = true, &nodeObject{objects.New(r), c.node, s.registry.labels}
	}
	return c
}

// memory is what the agent remembers in keep.db over restarts and reboots. Without it the node
// works, but its peers must learn new MAC addresses.
type memory struct{ host *roles.Host }

// remembered is the content of the memory.
type remembered struct {
	// PodCIDRs are the node's last pod networks. MACs are the MAC addresses of its VTEPs by device
	// name.
	PodCIDRs []netip.Prefix    `json:"podCIDRs,omitempty"`
	MACs     map[string]string `json:"macs,omitempty"`
	// PublicIP and PublicIPv6 are the addresses that were published last.
	PublicIP   netip.Addr `json:"publicIP,omitzero"`
	PublicIPv6 netip.Addr `json:"publicIPv6,omitzero"`
	// Machine distinguishes this machine from another one with the same node name.
	Machine string `json:"machine,omitempty"`
	// RangesDir is the directory in which an agent with -ranges-only has found its registry.
	RangesDir string `json:"rangesDir,omitempty"`
}

// markKind and markName are the key in keep.db.
const (
	markKind = "agent"
	markName = "node"
)

// withCurrentAddresses returns r with the node's present public addresses if they can be found
// without the network's configuration. The stored addresses may have been copied from another machine.
func (s *settings) withCurrentAddresses(ctx context.Context, h *roles.Host, r remembered) remembered {
	r.PublicIP, r.PublicIPv6 = netip.Addr{}, netip.Addr{}
	links, err := h.Net.HostLinks(ctx)
	if err != nil {
		return r
	}
	route := func(a netip.Addr) (string, error) { return h.Net.RouteLink(ctx, nil, a) }
	u4, _ := s.underlay.choose(links, true, false, route)
	u6, _ := s.underlay.choose(links, false, true, route)
	r.PublicIP, r.PublicIPv6 = u4.public4, u6.public6
	return r
}

// load reads the memory.
func (m memory) load(ctx context.Context) (r remembered) {
	err := m.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, markName)
		if err != nil || !ok {
			return err
		}
		return json.Unmarshal(raw, &r)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		m.host.Log.Warn("cannot read the saved state of this node", "error", err)
	}
	return r
}

// save applies change to the memory and writes it, in one transaction.
func (m memory) save(ctx context.Context, change func(*remembered)) {
	err := m.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return rewrite(tx, change) })
	if err != nil {
		m.host.Log.Warn("cannot save the state of this node", "error", err)
	}
}

// rewrite applies change to the memory.
func rewrite(tx *store.KeepTx, change func(*remembered)) error {
	var r remembered
	raw, _, err := tx.Marked(markKind, markName)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	_ = json.Unmarshal(raw, &r) // a damaged memory is replaced
	change(&r)
	if raw, err = json.Marshal(r); err != nil {
		return err
	}
	return tx.Mark(markKind, markName, raw)
}

// forget deletes the memory except the machine's identity and its last writes. If the agent is installed again, a record
// that stayed, and blocks of cluster-wide ranges whose addresses containers still use, belong to this machine.
func (m memory) forget(ctx context.Context) error {
	return m.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		keep := func(r *remembered) { *r = remembered{Machine: r.Machine} }
		return errors.Join(rewrite(tx, keep), forgetFormer(tx), tx.Unmark(markKind, clusterMark), tx.Unmark(markKind, keyMark))
	})
}
