package nodeipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// cloudNode assigns pod networks to one node, the one that it runs on: prefixes that the cloud has given to the node's
// network interface. A cloud shows these to the node without credentials, so each node has such a daemon.
type cloudNode struct {
	client   *registry
	log      *slog.Logger
	name     string
	provider metadata.Provider
	url      string

	mu   sync.Mutex
	held []netip.Prefix // the Node's
	err  error          // why the Node has none, or others than the cloud gives
	// event is the reason of the last event about the Node with the uid.
	event, uid string
}

// cloudInterval is the time between two comparisons of the Node with the cloud, and the longest pause after an error.
const cloudInterval = time.Minute

// run assigns pod networks until ctx ends.
func (c *cloudNode) run(ctx context.Context) {
	again, retry := web.Backoff{Min: cloudInterval, Max: cloudInterval}, web.Backoff{Min: time.Second, Max: cloudInterval}
	for ctx.Err() == nil {
		err := c.assign(ctx)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		if err == nil {
			retry.Reset()
			_ = again.Wait(ctx, 0)
			continue
		}
		_ = retry.Wait(ctx, 0)
	}
}

// assign writes the Node's pod networks, or compares them with the cloud's prefixes if the Node has some.
func (c *cloudNode) assign(ctx context.Context) error {
	path := rest.Path("api", "v1", "nodes", c.name)
	var o nodeObject
	if err := c.client.Get(ctx, path, &o); err != nil {
		return fmt.Errorf("get node %s: %w", c.name, err)
	}
	held, err := readCIDRs(&o)
	assigned := len(o.Spec.PodCIDRs) > 0
	c.mu.Lock()
	c.held = held
	c.mu.Unlock()
	if assigned {
		c.setCondition(ctx, &o, "", nil)
	}
	if assigned && err != nil {
		return err
	}
	all, err := c.prefixes(ctx, &o)
	if assigned {
		i := slices.IndexFunc(held, func(p netip.Prefix) bool { return !slices.Contains(all, p) })
		if err == nil && i >= 0 {
			err = fmt.Errorf("spec.podCIDRs: the cloud does not give %s to this node, but %v: delete the Node, and its kubelet registers it again", held[i], all)
		}
		return err
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w: the cloud (%s) gives no prefix to the first network interface of this node: assign one there", cluster.ErrFull, c.provider.Name)
	}
	if err != nil {
		c.report(ctx, &o, notAvailable, err)
		return err
	}
	chosen := onePerFamily(all)
	var reply nodeObject
	if err := c.client.assign(ctx, path, newNodePatch(o.Metadata.ResourceVersion, chosen), &reply); err != nil {
		err = fmt.Errorf("assign %v: %w", chosen, err)
		if !errors.Is(err, rest.ErrConflict) {
			c.report(ctx, &o, assignmentFailed, err)
		}
		return err
	}
	c.log.Info("assigned pod networks", "node", c.name, "podCIDRs", chosen, "prefixes", all)
	c.mu.Lock()
	c.held, c.event = chosen, ""
	c.mu.Unlock()
	c.setCondition(ctx, &reply, "", nil)
	return nil
}

// prefixes returns the prefixes that the cloud gives to the node's first network interface. The Node must have an
// address of this machine, so that no other Node is changed.
func (c *cloudNode) prefixes(ctx context.Context, o *nodeObject) ([]netip.Prefix, error) {
	reply, err := c.provider.Fetch(ctx, metadata.Query{URL: c.url})
	if reply == nil {
		return nil, err // ErrNoAddresses has a reply if that is valid
	}
	var own []netip.Addr
	for i := range reply.NICs {
		for _, s := range reply.NICs[i].Subnets {
			own = append(own, s.Own...)
		}
	}
	isOwn := false
	for _, a := range o.Status.Addresses {
		ip, _ := netip.ParseAddr(a.Address)
		isOwn = isOwn || a.Type == "InternalIP" && slices.Contains(own, ip)
	}
	if !isOwn {
		return nil, fmt.Errorf("%w: no InternalIP of the Node is an address of this machine %v: set -node-name to this machine's Node", cluster.ErrInvalid, own)
	}
	first := slices.IndexFunc(reply.NICs, func(n store.CloudNIC) bool { return n.Primary })
	var all []netip.Prefix
	for _, s := range reply.NICs[max(0, first)].Subnets {
		all = append(all, s.Ranges...)
	}
	return all, nil
}

// onePerFamily returns the largest prefix of each family, IPv4 first. Of equal ones it is the one with the lowest address.
func onePerFamily(all []netip.Prefix) (chosen []netip.Prefix) {
	all = slices.Clone(all)
	sorting.Func(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().BitLen()-b.Addr().BitLen(), a.Bits()-b.Bits(), a.Addr().Compare(b.Addr()))
	})
	for i, p := range all {
		if i == 0 || p.Addr().BitLen() != all[i-1].Addr().BitLen() {
			chosen = append(chosen, p)
		}
	}
	return chosen
}

// report makes an event of the Node, unless the last one had the same reason, and sets its condition.
func (c *cloudNode) report(ctx context.Context, o *nodeObject, reason string, cause error) {
	uid := o.Metadata.UID
	c.mu.Lock()
	known := c.event == reason && c.uid == uid
	c.event, c.uid = reason, uid
	c.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if !known {
		c.client.event(ctx, c.log, c.name, uid, reason, cause)
	}
	c.setCondition(ctx, o, reason, cause)
}

// describe adds the node to a status.
func (c *cloudNode) describe(s *status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Node, s.PodCIDRs = c.name, c.held
	if c.err != nil {
		s.Error = c.err.Error()
	}
	s.Nodes = 1
	if len(c.held) == 0 {
		s.Waiting = 1
	}
}
