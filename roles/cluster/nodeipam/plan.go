package nodeipam

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// planSettings are the flags of the plan.
type planSettings struct {
	networks networks
	hosts    []netip.Prefix
	maxPods  int
}

func (s *planSettings) register() *flag.FlagSet {
	f := process.NewFlags("plan")
	s.networks.register(f)
	f.IntVar(&s.networks.mask, "node-mask", 0, "the same as node-cidr-mask-size")
	f.Func("host-range", "`networks` of hosts that pods must reach, such as the nodes; separated by commas", prefixes(&s.hosts))
	f.IntVar(&s.maxPods, "max-pods", 110, "the kubelet's `maximum` of pods of a node")
	return f
}

// outlook is the answer of the plan.
type outlook struct {
	// Nodes get a block of each cluster network as given, and have Pods together.
	Nodes   int      `json:"nodes"`
	Pods    int      `json:"pods"`
	Options []option `json:"options"`
}

// option is one way to divide a cluster network.
type option struct {
	// What is "as given", "larger blocks", "smaller blocks" or "larger network".
	What        string       `json:"what"`
	ClusterCIDR netip.Prefix `json:"clusterCIDR"`
	NodeMask    int          `json:"nodeMask"`
	Nodes       int          `json:"nodes"`
	PodsPerNode int          `json:"podsPerNode"`
	Pods        int          `json:"pods"`
	// Cost is what a running cluster has to do for it.
	Cost     string    `json:"cost,omitempty"`
	Overlaps []overlap `json:"overlaps"`
}

// overlap is a network that overlaps blocks of a cluster network.
type overlap struct {
	Network netip.Prefix `json:"network"`
	// Of is "services" or "hosts". Blocks of services are not given to nodes.
	Of     string `json:"of"`
	Blocks int    `json:"blocks"`
}

// The costs of a change in a running cluster.
const (
	costBlocks  = "restart nodeipam with it; a Node keeps its block until it is deleted and its kubelet registers it again, which recreates its pods"
	costNetwork = "restart nodeipam with it, and change it in the agents' net-conf.json and in kube-proxy; Nodes and pods stay"
)

// plan calculates how many nodes and pods fit.
func plan(_ context.Context, _ *roles.Host, flags map[string]string, _ []string) (any, error) {
	var s planSettings
	f := s.register()
	var errs []error
	for name, value := range flags {
		if value != "" {
			if err := f.Set(name, value); err != nil {
				errs = append(errs, fmt.Errorf("-%s: %w", name, err))
			}
		}
	}
	if s.maxPods < 1 {
		errs = append(errs, fmt.Errorf("-max-pods: %d: give a positive number", s.maxPods))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, roles.Usagef("%w", err)
	}
	sets, err := s.networks.blocks()
	if err != nil {
		return nil, roles.Usagef("%w", err)
	}
	out := &outlook{}
	for i, b := range sets {
		given := s.option("as given", b, "")
		if i == 0 || given.Nodes < out.Nodes {
			out.Nodes = given.Nodes
		}
		if i == 0 || given.PodsPerNode*out.Nodes < out.Pods {
			out.Pods = given.PodsPerNode * out.Nodes
		}
		out.Options = append(out.Options, given)
		for _, o := range []struct {
			what, cost   string
			bits, length int
		}{
			{"larger blocks", costBlocks, b.network.Bits(), b.length - 1},
			{"smaller blocks", costBlocks, b.network.Bits(), b.length + 1},
			{"larger network", costNetwork, b.network.Bits() - 1, b.length},
		} {
			if o.bits < 0 {
				continue
			}
			other, err := newBlocks(netip.PrefixFrom(b.network.Addr(), o.bits).Masked(), o.length)
			if err == nil {
				out.Options = append(out.Options, s.option(o.what, other, o.cost))
			}
		}
	}
	return out, nil
}

// option describes free blocks.
func (s *planSettings) option(what string, b *blocks, cost string) option {
	o := option{
		What: what, ClusterCIDR: b.network, NodeMask: b.length, Cost: cost, Overlaps: []overlap{},
		PodsPerNode: min(s.maxPods, podAddresses(b.network.Addr().BitLen()-b.length)),
	}
	for _, group := range []struct {
		of  string
		all []netip.Prefix
	}{{"services", s.networks.services}, {"hosts", s.hosts}} {
		for _, p := range group.all {
			if at := b.span(p); at.n > 0 {
				o.Overlaps = append(o.Overlaps, overlap{p, group.of, int(at.n)})
			}
		}
	}
	for _, p := range s.networks.services {
		b.occupy(p)
	}
	o.Nodes = b.Max - b.Used
	o.Pods = o.Nodes * o.PodsPerNode
	return o
}

// podAddresses returns the number of addresses for pods in a block with a number of host bits, at most
// a million. The network address, the gateway and the last address are not given to pods.
func podAddresses(hostBits int) int {
	const reserved = 3
	return max(0, 1<<min(hostBits, 20)-reserved)
}

// Table shows the options.
func (o *outlook) Table() (head []string, rows [][]string) {
	for _, p := range o.Options {
		rows = append(rows, []string{p.What, p.ClusterCIDR.String(), "/" + strconv.Itoa(p.NodeMask), strconv.Itoa(p.Nodes), strconv.Itoa(p.PodsPerNode), strconv.Itoa(p.Pods)})
	}
	return []string{"OPTION", "CLUSTER NETWORK", "NODE MASK", "NODES", "PODS/NODE", "PODS"}, rows
}

// String returns the sum, the overlaps and the costs.
func (o *outlook) String() string {
	text := fmt.Sprintf("%d nodes and %d pods fit.", o.Nodes, o.Pods)
	for _, p := range o.Options {
		for _, v := range p.Overlaps {
			note := "no node gets them"
			if v.Of == "hosts" {
				note = "pods could not reach these hosts; use another cluster network"
			}
			text += fmt.Sprintf("\n%s: %s of %s overlaps blocks of %s (%d): %s", p.What, v.Network, v.Of, p.ClusterCIDR, v.Blocks, note)
		}
	}
	return text + "\nLarger or smaller blocks: " + costBlocks + ".\nA larger network: " + costNetwork + "."
}
