package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/cluster/egress"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// egressFlags configure the egress addresses of namespaces.
type egressFlags struct {
	networks, except []netip.Prefix
	namespace        string
}

// defaultEgressNamespace is the namespace of the Leases and ConfigMaps.
const defaultEgressNamespace = "cnibox-egress"

func (e *egressFlags) register(f *flag.FlagSet) {
	list := func(into *[]netip.Prefix) func(string) error {
		return func(v string) error {
			for _, one := range process.SplitList(v) {
				p, err := netip.ParsePrefix(one)
				if err != nil || p != p.Masked() {
					return fmt.Errorf("%.60q is not a network: use for example 203.0.113.0/28", one)
				}
				*into = append(*into, p)
			}
			return nil
		}
	}
	f.Func("egress-networks", "comma-separated `networks` whose addresses the annotation "+egress.Annotation+" of a Namespace may name; none: no egress addresses", list(&e.networks))
	f.Func("egress-except", "comma-separated `networks` that pods reach without their egress address", list(&e.except))
	f.StringVar(&e.namespace, "egress-namespace", defaultEgressNamespace, "`namespace` of the Leases and ConfigMaps of egress addresses")
}

func (e *egressFlags) check(r *registryFlags) []error {
	switch {
	case len(e.networks) == 0 && len(e.except) > 0:
		return []error{errors.New("-egress-except: it has no effect without -egress-networks")}
	case len(e.networks) > 0 && !r.kube:
		return []error{errors.New("-egress-networks: egress addresses need -kube-subnet-mgr: the annotations and Leases of Kubernetes say who holds them")}
	}
	if err := egress.CheckNetworks(e.networks); err != nil {
		return []error{err}
	}
	return nil
}

// egressPart is the agent's part of egress addresses.
type egressPart struct {
	keeper *egress.Keeper
	// view was computed from key.
	view *egress.View
	key  egressKey
	// told are the namespaces in the last hand-off file.
	told []string
}

// egressKey is what a view depends on.
type egressKey struct {
	snapshot  *cluster.Snapshot
	config    *cluster.Config
	link      string
	links     [2]int
	direct    bool
	ownRecord *cluster.Node
}

func (p *egressPart) close() {
	if p.keeper != nil {
		_ = p.keeper.Close() // nothing is deleted
	}
}

// handOff returns what ADD calls need.
func (p *egressPart) handOff() *store.OverlayEgress {
	if p.keeper == nil {
		return nil
	}
	p.told = p.keeper.Namespaces()
	return &store.OverlayEgress{Namespaces: p.told}
}

// openEgress opens the keeper of egress addresses, or returns nil if the agent gives none.
func (a *agent) openEgress() (*egress.Keeper, error) {
	e := &a.set.egress
	if len(e.networks) == 0 {
		return nil, nil //nolint:nilnil // a nil Keeper does nothing
	}
	client, err := a.set.kubeClient(a.host)
	if err != nil {
		return nil, err
	}
	own := *a.host
	own.Net = a.host.Net.Clone()
	o := egress.Options{Host: &own, Server: a.socket, Client: client, Node: a.registry.node, Namespace: e.namespace, Networks: e.networks, Log: a.log}
	if former, err := store.ReadOverlay(a.set.overlayFile); err == nil && former.BootID == a.host.Store.BootID() && former.Egress != nil && former.Ready {
		o.Known = append([]string{}, former.Egress.Namespaces...)
	}
	return egress.Open(o)
}

// runEgress works until ctx ends. Without a keeper it removes what a former one made.
func (a *agent) runEgress(ctx context.Context) {
	if a.egress.keeper != nil {
		a.egress.keeper.Run(ctx)
		return
	}
	if err := egress.Retire(ctx, a.host); err != nil && ctx.Err() == nil {
		a.log.Warn("cannot remove what egress addresses left", "error", err)
	}
}

// setEgressView tells the keeper of egress addresses what the agent knows, after the files for ADD calls were written.
func (a *agent) setEgressView(ctx context.Context) {
	p := &a.egress
	if p.keeper == nil || a.own == nil || a.config == nil || a.snapshot == nil || a.peers == nil || a.fromMemory {
		return
	}
	key := egressKey{snapshot: a.snapshot, config: a.config, link: a.underlay.link, direct: a.direct(), ownRecord: a.own}
	for i := range a.families {
		key.links[i] = a.tunnelIndex(i)
	}
	if key.direct || p.view == nil || p.key != key || a.families[0].report.Writes+a.families[1].report.Writes > 0 {
		p.key = key
		if v := a.egressView(ctx); p.view == nil || !v.Same(p.view) {
			p.view = v
		}
	}
	p.keeper.SetView(p.view, p.told)
}

// direct reports whether packets to other nodes may go without a tunnel.
func (k *knowledge) direct() bool {
	return k.config.Backend.Type == backendHostGW || k.config.Backend.DirectRouting
}

// tunnelIndex returns the index of the tunnel device of a family, or 0.
func (a *agent) tunnelIndex(family int) int {
	device := a.families[family].spec.Device
	if device == nil {
		return 0
	}
	return a.linkIndex(device.Name)
}

func (k *knowledge) linkIndex(name string) int {
	if i := slices.IndexFunc(k.links, func(l netops.HostLink) bool { return l.Name == name }); i >= 0 {
		return k.links[i].Index
	}
	return 0
}

// egressView returns what the agent knows, for egress addresses.
func (a *agent) egressView(ctx context.Context) *egress.View {
	v := &egress.View{Near: slices.Concat(a.set.exceptions, a.set.egress.except), Peers: map[string]egress.Peer{}}
	if a.config.Backend.Type == backendWireGuard {
		v.Fault = errors.New("-egress-networks: the backend is wireguard, whose device gives the addresses outside of the cluster to one peer only: use vxlan or host-gw, or leave the flag out")
	}
	for i, f := range a.families {
		network, on := a.config.Family(f.v6)
		if !on || f.overlay == nil {
			continue
		}
		v.Networks = append(v.Networks, network)
		if f.spec.Device != nil {
			v.Tunnels = append(v.Tunnels, f.spec.Device.Name)
		}
		tunnel, parent := a.tunnelIndex(i), a.linkIndex(a.underlay.link)
		for _, p := range f.overlay.Peers(ctx) {
			one := v.Peers[p.Name]
			one.Subnets[i] = p.Subnet
			one.Hops[i] = egress.Hop{Via: p.Gateway, Link: parent}
			if p.Tunnelled {
				one.Hops[i] = egress.Hop{Via: p.Subnet.Addr(), Link: tunnel}
			}
			v.Peers[p.Name] = one
		}
	}
	v.Arrivals = slices.Clone(v.Tunnels)
	if a.direct() {
		v.Arrivals = append(v.Arrivals, a.underlay.link)
	}
	for _, n := range append([]*cluster.Node{a.own}, a.snapshot.Nodes...) {
		for _, addr := range []netip.Addr{n.PublicIP, n.PublicIPv6} {
			if addr.IsValid() {
				v.Nodes = append(v.Nodes, addr)
			}
		}
	}
	sorting.Func(v.Nodes, netip.Addr.Compare)
	v.Nodes = slices.Compact(v.Nodes)
	return v
}
