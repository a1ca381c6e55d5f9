package egress

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// Names of ConfigMaps, before the name of a node or the text of an address, and the keys of their data.
const (
	nodePrefix    = "node-"
	addressPrefix = "address-"
	podsKey       = "pods"
	addressKey    = "address"
	holderKey     = "holder"
)

// namespace is a Namespace.
type namespace struct{ rest.Object }

// configMap is a ConfigMap.
type configMap struct {
	rest.Object
	Data map[string]string `json:"data"`
}

// ownNode is this node's Node object.
type ownNode struct {
	rest.Object
	Spec struct {
		ProviderID string `json:"providerID"`
	} `json:"spec"`
}

// follow follows the collections until ctx ends.
func (k *Keeper) follow(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() {
		_ = rest.Follow(ctx, k.Client, "/api/v1/namespaces", &collection[*namespace]{
			keeper: k, put: k.putNamespace, remove: func(name string) { delete(k.facts.requests, name) },
		})
	})
	running.Go(func() {
		_ = rest.Follow(ctx, k.Client, k.path(), &collection[*configMap]{keeper: k, put: k.putConfigMap, remove: k.removeConfigMap})
	})
	running.Go(func() {
		where := url.Values{"fieldSelector": {"metadata.name=" + k.Node}}
		_ = rest.FollowWhere(ctx, k.Client, "/api/v1/nodes", where, &collection[*ownNode]{
			keeper: k, put: func(o *ownNode) { k.own = *o }, remove: func(string) { k.own = ownNode{} },
		})
	})
}

// path returns the path of the ConfigMaps, or of one.
func (k *Keeper) path(name ...string) string {
	return rest.Path(append([]string{"api", "v1", "namespaces", k.Namespace, "configmaps"}, name...)...)
}

// collection is a cluster.Follower. put and remove are called with the Keeper's lock.
type collection[P rest.Kind] struct {
	keeper *Keeper
	put    func(P)
	remove func(name string)
	names  map[string]bool
	listed bool
}

// Put stores an object.
func (c *collection[P]) Put(o P, listing bool) {
	c.keeper.mu.Lock()
	c.put(o)
	if c.names == nil {
		c.names = map[string]bool{}
	}
	c.names[o.Meta().Key()] = true
	c.keeper.mu.Unlock()
	if !listing {
		notify(c.keeper.work)
	}
}

// Remove removes an object.
func (c *collection[P]) Remove(name string, listing bool) {
	c.keeper.mu.Lock()
	c.remove(name)
	delete(c.names, name)
	c.keeper.mu.Unlock()
	if !listing {
		notify(c.keeper.work)
	}
}

// Complete removes the objects that do not exist.
func (c *collection[P]) Complete(names map[string]bool) {
	c.keeper.mu.Lock()
	for name := range c.names {
		if !names[name] {
			c.remove(name)
			delete(c.names, name)
		}
	}
	if !c.listed {
		c.listed = true
		c.keeper.listed++
	}
	delete(c.keeper.unread, c.what())
	c.keeper.mu.Unlock()
	notify(c.keeper.work)
}

// what returns the name of the objects in the plural.
func (c *collection[P]) what() string {
	switch any(c).(type) {
	case *collection[*namespace]:
		return "namespaces"
	case *collection[*ownNode]:
		return "nodes"
	}
	return "configmaps"
}

// Failed stores that the server cannot be read. What is known stays in force.
func (c *collection[P]) Failed(err error) {
	c.keeper.mu.Lock()
	c.keeper.unread[c.what()] = err
	c.keeper.mu.Unlock()
	notify(c.keeper.work)
}

// Recovered stores that it can be read again.
func (c *collection[P]) Recovered() {
	c.keeper.mu.Lock()
	delete(c.keeper.unread, c.what())
	c.keeper.mu.Unlock()
	notify(c.keeper.work)
}

func (k *Keeper) putNamespace(o *namespace) {
	text, has := o.Metadata.Annotations[Annotation]
	if !has {
		delete(k.facts.requests, o.Metadata.Name)
		return
	}
	k.facts.requests[o.Metadata.Name] = parseRequest(text, k.Networks)
}

func (k *Keeper) putConfigMap(o *configMap) {
	name := o.Metadata.Name
	k.removeConfigMap(k.Namespace + "/" + name)
	if node, is := strings.CutPrefix(name, nodePrefix); is {
		var pods map[netip.Addr]string
		if json.Unmarshal([]byte(o.Data[podsKey]), &pods) == nil && len(pods) > 0 {
			k.facts.published[node] = pods
		}
		return
	}
	a, err := netip.ParseAddr(o.Data[addressKey])
	if err == nil && name == addressName(a) && o.Data[holderKey] != "" {
		k.facts.holders[a] = o.Data[holderKey]
	}
}

func (k *Keeper) removeConfigMap(key string) {
	_, name, _ := strings.Cut(key, "/")
	if node, is := strings.CutPrefix(name, nodePrefix); is {
		delete(k.facts.published, node)
		return
	}
	for a := range k.facts.holders {
		if addressName(a) == name {
			delete(k.facts.holders, a)
		}
	}
}

// addressName returns the name of the Lease and the ConfigMap of an address.
func addressName(a netip.Addr) string {
	return addressPrefix + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// write changes the data of a ConfigMap, and makes it if it does not exist. With a version it changes only that one.
func (k *Keeper) write(ctx context.Context, name, version string, data map[string]string) error {
	metadata := map[string]any{"name": name}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	err := k.Client.Patch(ctx, k.path(name), rest.MergePatch, map[string]any{"metadata": metadata, "data": data}, nil)
	if !errors.Is(err, rest.ErrNotFound) || version != "" {
		return err
	}
	k.mu.Lock()
	uid := k.own.Metadata.UID
	k.mu.Unlock()
	metadata = map[string]any{"name": name}
	if name == nodePrefix+k.Node && uid != "" {
		metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": k.Node, "uid": uid}}
	}
	return k.Client.Create(ctx, k.path(), map[string]any{"metadata": metadata, "data": data}, nil)
}
