package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
)

// nodeObject is this node's object in a registry without an API server. nodeipam writes the pod networks to it.
type nodeObject struct {
	client *objects.Client
	name   string
	labels map[string]string
}

// nodesPath is the path of the objects of nodes.
const nodesPath = "/api/v1/nodes"

func (n *nodeObject) path() string { return nodesPath + "/" + n.name }

// assigned returns the pod networks that nodeipam has assigned, IPv4 first. It makes the object if it does not exist,
// and adds the labels that it lacks. Without pod networks the error is cluster.ErrNotAssigned.
func (n *nodeObject) assigned(ctx context.Context) ([]netip.Prefix, error) {
	var o struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			PodCIDRs []string `json:"podCIDRs"`
		} `json:"spec"`
	}
	change := map[string]any{"metadata": map[string]any{"name": n.name, "labels": n.labels}}
	err := n.client.Get(ctx, n.path(), &o)
	if errors.Is(err, rest.ErrNotFound) {
		err = n.client.Create(ctx, nodesPath, change, &o)
	}
	for key, value := range n.labels {
		if err == nil && o.Metadata.Labels[key] != value {
			err = n.client.Patch(ctx, n.path(), rest.MergePatch, change, &o)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the pod networks of node %s: %w", n.name, err)
	}
	var all []netip.Prefix
	for i, text := range o.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w: spec.podCIDRs[%d]: %.60q is not a network", n.name, cluster.ErrInvalid, i, text)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("node %s: %w: 'cnibox nodeipam status' has the reason", n.name, cluster.ErrNotAssigned)
	}
	sorting.Func(all, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return all, nil
}
