package policy

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// Kube is a Source of a Kubernetes API server. It needs list and watch on networkpolicies, clusternetworkpolicies,
// multi-networkpolicies, namespaces, pods and nodes, get on pods and nodes, and those of publish.go on configmaps.
type Kube struct {
	Client *rest.Client
	// Node is the name of this node's Node object.
	Node string
	Log  *slog.Logger
	// publishing has what Publish was called with last.
	publishing chan map[string]netpolicy.Given
	// usable has the names of the cluster policies in the Table that had the form of their kind. The functions that change the Table own it.
	usable map[string]bool
}

// NewKube returns a Source for a node.
func NewKube(client *rest.Client, node string, log *slog.Logger) *Kube {
	return &Kube{Client: client, Node: node, Log: log, publishing: make(chan map[string]netpolicy.Given, 1), usable: map[string]bool{}}
}

// FromFiles returns false.
func (s *Kube) FromFiles() bool { return false }

// OnNode reports whether a pod is scheduled to this node.
func (s *Kube) OnNode(p *netpolicy.Pod) bool { return p.Node == s.Node }

// Fetch reads a pod.
func (s *Kube) Fetch(ctx context.Context, namespace, name string) (*netpolicy.Pod, error) {
	for what, text := range map[string]string{"namespace": namespace, "pod": name} {
		if err := rest.CheckName(what, text); err != nil {
			return nil, err
		}
	}
	var o kubePod
	if err := s.Client.Get(ctx, rest.Path("api", "v1", "namespaces", namespace, "pods", name), &o); err != nil {
		return nil, err
	}
	return o.pod(), nil
}

// kubeNamespace is a Namespace.
type kubeNamespace struct{ rest.Object }

// kubeNode is a Node.
type kubeNode struct {
	rest.Object
	Status kubeStatus `json:"status"`
}

// kubePod is a Pod.
type kubePod struct {
	rest.Object
	Spec struct {
		NodeName       string          `json:"nodeName"`
		HostNetwork    bool            `json:"hostNetwork"`
		Containers     []kubeContainer `json:"containers"`
		InitContainers []kubeContainer `json:"initContainers"`
	} `json:"spec"`
	Status kubeStatus `json:"status"`
}

// kubeStatus is the status of a pod or of a node.
type kubeStatus struct {
	Addresses []netpolicy.NodeAddress `json:"addresses"`

	Phase  string `json:"phase"`
	PodIPs []struct {
		IP string `json:"ip"`
	} `json:"podIPs"`
}

// UnmarshalJSON ignores a text: that is the member "status" of a Status, which takes the place of an object in a watch that
// the server refuses.
func (s *kubeStatus) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return nil
	}
	type plain kubeStatus
	return json.Unmarshal(b, (*plain)(s))
}

type kubeContainer struct {
	RestartPolicy string `json:"restartPolicy"`
	Ports         []struct {
		Name          string `json:"name"`
		ContainerPort uint16 `json:"containerPort"`
		Protocol      string `json:"protocol"`
	} `json:"ports"`
}

// staticUID is the annotation of a static pod's mirror that has the UID that kubelet gives the runtime.
const staticUID = "kubernetes.io/config.hash"

// networkStatus is the annotation of a pod with its networks (Kubernetes Network Custom Resource Definition De-facto Standard, version
// 1.3, section 5).
const networkStatus = "k8s.v1.cni.cncf.io/network-status"

// networksOf returns the addresses of the networks in a network-status, except those of the cluster's network. A text that is not one
// has none.
func networksOf(text string) map[string][]netip.Addr {
	var all []struct {
		Name    string       `json:"name"`
		IPs     []netip.Addr `json:"ips"`
		Default bool         `json:"default"`
	}
	if text == "" || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	networks := map[string][]netip.Addr{}
	for _, n := range all {
		if !n.Default && len(n.IPs) > 0 {
			networks[n.Name] = append(networks[n.Name], n.IPs...)
		}
	}
	return networks
}

// pod returns the pod. An init container has its ports as long as the pod runs if it restarts always.
func (o *kubePod) pod() *netpolicy.Pod {
	m := &o.Metadata
	p := &netpolicy.Pod{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, StaticUID: m.Annotations[staticUID], Node: o.Spec.NodeName, Labels: m.Labels,
		HostNetwork: o.Spec.HostNetwork, Finished: o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed",
	}
	for _, ip := range o.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.Addresses = append(p.Addresses, a.Unmap())
		}
	}
	p.Networks = networksOf(m.Annotations[networkStatus])
	containers := o.Spec.Containers
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.Name != "" {
				p.Ports = append(p.Ports, netpolicy.PodPort{Name: port.Name, Protocol: port.Protocol, Port: port.ContainerPort})
			}
		}
	}
	return p
}

// recent has recent values by their hashes.
type recent[T any] [1 << 12]T

// share returns a recent value that is equal to v, or v. Equal values of different objects then use the memory of one.
func (r *recent[T]) share(v T, hash uint64, equal func(a, b T) bool) T {
	old := &r[hash%uint64(len(r))]
	if !equal(*old, v) {
		*old = v
	}
	return *old
}

// shared has what many objects have: the pods of a workload have the same labels and ports, and policies for one service the same ports.
type shared struct {
	seed     maphash.Seed
	labels   recent[map[string]string]
	podPorts recent[[]netpolicy.PodPort]
	ports    recent[[]netpolicy.Port]
}

func (s *shared) pod(p *netpolicy.Pod) {
	var labels uint64
	for k, v := range p.Labels {
		labels += maphash.Comparable(s.seed, [2]string{k, v})
	}
	p.Labels = s.labels.share(p.Labels, labels, maps.Equal)
	p.Ports = s.podPorts.share(p.Ports, hashAll(s.seed, p.Ports), slices.Equal)
	p.Node = unique.Make(p.Node).Value()
}

func (s *shared) policy(p *netpolicy.Policy) {
	for _, rules := range p.Allows {
		for i := range rules {
			ports := &rules[i].Ports
			*ports = s.ports.share(*ports, hashAll(s.seed, *ports), slices.Equal)
		}
	}
}

func hashAll[T comparable](seed maphash.Seed, list []T) (hash uint64) {
	for _, v := range list {
		hash += maphash.Comparable(seed, v)
	}
	return hash
}

// Run follows the collections. They are known when each was read once. Nodes are followed as soon as a policy selects nodes.
func (s *Kube) Run(ctx context.Context, put func(func(*netpolicy.Table))) {
	var running, reading sync.WaitGroup
	same := shared{seed: maphash.MakeSeed()} // each collection has members of its own
	reading.Add(5)
	running.Go(func() {
		_ = rest.Follow(ctx, s.Client, "/api/v1/namespaces", &collection[*kubeNamespace]{
			source: s, what: "namespaces", put: put, complete: sync.OnceFunc(reading.Done),
			change: func(o *kubeNamespace) func(*netpolicy.Table) {
				return func(t *netpolicy.Table) { t.PutNamespace(o.Metadata.Name, o.Metadata.Labels) }
			},
			remove: func(t *netpolicy.Table, _, name string) { t.RemoveNamespace(name) },
		})
	})
	running.Go(func() {
		_ = rest.Follow(ctx, s.Client, "/apis/networking.k8s.io/v1/networkpolicies", &collection[*kubePolicy]{
			source: s, what: "network policies", put: put, complete: sync.OnceFunc(reading.Done),
			change: func(o *kubePolicy) func(*netpolicy.Table) { return s.policy(o, &same) },
			remove: func(t *netpolicy.Table, namespace, name string) {
				t.RemovePolicy(namespace, name)
				t.SetFault(policyTitle(namespace, name), nil)
			},
		})
	})
	running.Go(func() {
		_ = rest.Follow(ctx, s.Client, "/api/v1/pods", &collection[*kubePod]{
			source: s, what: "pods", put: put, complete: sync.OnceFunc(reading.Done),
			change: func(o *kubePod) func(*netpolicy.Table) {
				p := o.pod()
				same.pod(p)
				return func(t *netpolicy.Table) { t.PutPod(p) }
			},
			remove: func(t *netpolicy.Table, namespace, name string) { t.RemovePod(namespace, name) },
		})
	})
	followNodes := sync.OnceFunc(func() { s.followNodes(ctx, &running, put) })
	running.Go(func() {
		followVersions(ctx, s.Client, "policy.networking.k8s.io", "clusternetworkpolicies", [2]string{"v1beta1", "v1alpha2"}, &collection[*kubeClusterPolicy]{
			source: s, what: "cluster network policies", put: put, complete: sync.OnceFunc(reading.Done), optional: true,
			change: func(o *kubeClusterPolicy) func(*netpolicy.Table) {
				p, change := s.clusterPolicy(o)
				if p.SelectsNodes() {
					followNodes()
				}
				return change
			},
			remove: func(t *netpolicy.Table, _, name string) { s.removeClusterPolicy(t, name) },
		})
	})
	running.Go(func() {
		followVersions(ctx, s.Client, "k8s.cni.cncf.io", "multi-networkpolicies", [2]string{"v1beta2", "v1beta1"}, &collection[*kubeMultiPolicy]{
			source: s, what: "multi network policies", put: put, complete: sync.OnceFunc(reading.Done), optional: true,
			change: s.multiPolicy,
			remove: func(t *netpolicy.Table, namespace, name string) {
				t.PutMulti(namespace, name, nil)
				t.SetFault(multiTitle(namespace, name), nil)
			},
		})
	})
	running.Go(func() { s.publish(ctx) })
	running.Go(func() {
		_ = rest.Follow(ctx, s.Client, givenPath(), &collection[*kubeGiven]{
			source: s, what: "addresses of new pods", put: put, complete: func() {}, optional: true,
			change: func(o *kubeGiven) func(*netpolicy.Table) {
				given := o.given()
				return func(t *netpolicy.Table) { t.PutGiven(o.Metadata.Name, given) }
			},
			remove: func(t *netpolicy.Table, _, name string) { t.PutGiven(name, nil) },
		})
	})
	known := make(chan struct{})
	go func() { reading.Wait(); close(known) }()
	select {
	case <-known:
		put(nil)
	case <-ctx.Done():
	}
	running.Wait()
}

// followNodes returns when the nodes were read once: a policy that selects nodes would be open before.
func (s *Kube) followNodes(ctx context.Context, running *sync.WaitGroup, put func(func(*netpolicy.Table))) {
	known := make(chan struct{})
	running.Go(func() {
		_ = rest.Follow(ctx, s.Client, "/api/v1/nodes", &collection[*kubeNode]{
			source: s, what: "nodes", put: put, complete: sync.OnceFunc(func() { close(known) }),
			change: func(o *kubeNode) func(*netpolicy.Table) {
				n := netpolicy.NewNode(o.Metadata.Name, o.Metadata.Labels, o.Status.Addresses)
				return func(t *netpolicy.Table) { t.PutNode(n) }
			},
			remove: func(t *netpolicy.Table, _, name string) { t.RemoveNode(name) },
		})
	})
	select {
	case <-known:
	case <-ctx.Done():
	}
}

// absentTime is the time until the versions of a kind are looked for again that the server does not have.
const absentTime = 30 * time.Second

// followVersions follows a kind of object in a version that the server has. All versions have the same objects, the first has all fields.
func followVersions[P rest.Kind](ctx context.Context, client *rest.Client, group, plural string, versions [2]string, c *collection[P]) {
	for ctx.Err() == nil {
		for i, version := range versions {
			within, stop := context.WithCancel(ctx)
			c.nextVersion, c.absent = stop, nil
			if i == len(versions)-1 {
				c.nextVersion, c.absent = nil, func() { time.AfterFunc(absentTime, stop) }
			}
			_ = rest.Follow(within, client, "/apis/"+group+"/"+version+"/"+plural, c)
			stop()
		}
	}
}

// collection is a cluster.Follower that passes changes on.
type collection[P rest.Kind] struct {
	source   *Kube
	what     string
	put      func(func(*netpolicy.Table))
	change   func(P) func(*netpolicy.Table)
	remove   func(t *netpolicy.Table, namespace, name string)
	complete func()
	// optional is true if a cluster may lack the kind of object.
	optional bool
	// nextVersion is called if the server lacks this version of the kind of object, unless it is nil. absent is called if it lacks all.
	nextVersion, absent func()
	// names are the objects that the table has. listed has the changes of a reading by object, which are made together, and those of
	// earlier readings that did not end.
	names  map[string]struct{}
	listed map[string]func(*netpolicy.Table)
	failed bool
}

// Put passes an object on.
func (c *collection[P]) Put(o P, listing bool) {
	m := o.Meta()
	key := m.Key()
	m.Namespace, m.Name = split(key) // the memory of key, which stays
	change := c.change(o)
	if !listing {
		c.names[key] = struct{}{}
		c.put(change)
		return
	}
	if c.listed == nil {
		c.listed = map[string]func(*netpolicy.Table){}
	}
	c.listed[key] = change
}

// Remove passes a deletion on.
func (c *collection[P]) Remove(name string, listing bool) {
	if listing {
		return // it is not among the names of Complete
	}
	namespace, own := split(name)
	delete(c.names, name)
	c.put(func(t *netpolicy.Table) { c.remove(t, namespace, own) })
}

// split returns the namespace and the name of a key.
func split(key string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(key, "/"); ok {
		return namespace, name
	}
	return "", key
}

// Complete passes on what was listed, and removes the objects that were not.
func (c *collection[P]) Complete(names map[string]bool) {
	listed, old := c.listed, c.names
	maps.DeleteFunc(listed, func(key string, _ func(*netpolicy.Table)) bool { return !names[key] })
	c.listed, c.names = nil, make(map[string]struct{}, len(listed))
	for key := range listed {
		c.names[key] = struct{}{}
	}
	c.put(func(t *netpolicy.Table) {
		for key := range old {
			if listed[key] == nil {
				namespace, name := split(key)
				c.remove(t, namespace, name)
			}
		}
		for _, change := range listed {
			change(t)
		}
	})
	c.Recovered()
	c.complete()
}

// Failed logs that the server cannot be reached. The known policies stay in force. Without the kind of object there are none.
func (c *collection[P]) Failed(err error) {
	if c.optional && errors.Is(err, rest.ErrNotFound) {
		c.listed = nil
		if c.nextVersion != nil {
			c.nextVersion()
			return
		}
		if c.absent != nil {
			c.absent()
		}
		if len(c.names) > 0 {
			c.Complete(map[string]bool{})
		}
		c.Recovered()
		c.complete()
		return
	}
	if !c.failed {
		c.source.Log.Warn("the API server cannot be reached: the known network policies stay in force", "of", c.what, "error", err)
	}
	c.failed, c.listed = true, nil
}

// Recovered logs that the server can be reached again.
func (c *collection[P]) Recovered() {
	if c.failed {
		c.source.Log.Warn("the API server can be reached", "of", c.what)
	}
	c.failed = false
}
