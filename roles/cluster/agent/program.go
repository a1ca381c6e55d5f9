package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops/overlay"
)

// family is the state of one address family in the kernel.
type family struct {
	v6      bool
	overlay *overlay.Kernel
	// spec is the last requested state. report and err are the result.
	spec   overlay.Spec
	report overlay.Report
	err    error
	// mtu is the MTU of pods.
	mtu int
	// nat is what the packet filter has of the family, or nil.
	nat *overlay.NAT
	// tried is true after every peer was tried once.
	tried bool
	// repaired is the time of the last logged repair.
	repaired time.Time
	// off is true if the family is disabled and all its objects are removed.
	off bool
	// after is the delay of the next attempt after the whole family failed.
	after time.Duration
}

// changes fires when the kernel's state may differ from the programmed one.
func (f *family) changes() <-chan struct{} {
	if f == nil || f.overlay == nil {
		return nil
	}
	return f.overlay.Changes()
}

// repairLogInterval is the shortest time between two lines of the log about repairs of one family.
const repairLogInterval = 10 * time.Second

// Bounds of the delay after which a family that failed as a whole is tried again.
const (
	retryLeast = 250 * time.Millisecond
	retryMost  = 30 * time.Second
)

// program applies a decision to the kernel, family by family. It lowers next to the delay until the next attempt.
func (a *agent) program(ctx context.Context, d *decision, next *time.Duration) (faults []error) {
	if d.peers.conflict != nil {
		faults = append(faults, d.peers.conflict)
	}
	mtu := a.underlayMTU()
	for i, v6 := range []bool{false, true} {
		err := a.programFamily(ctx, a.families[i], &d.families[i], v6)
		if err == nil {
			f := a.families[i]
			f.after = 0
			if key, d := a.deviceKey(v6), a.device(v6); d.key != key {
				d.key = key
				*next = 0 // publish it
			}
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %w", familyName(v6), err))
		f := a.families[i]
		f.after = min(max(2*f.after, retryLeast), retryMost)
		*next = min(*next, f.after)
	}
	if a.underlayMTU() != mtu {
		*next = 0 // the routes to the peers use other interfaces
	}
	a.formerErr = errors.Join(d.formerErr, a.removeFormer(ctx, d.former))
	for _, f := range a.families {
		if at := f.report.RetryAt; f.err == nil && !at.IsZero() {
			*next = min(*next, max(time.Until(at), time.Millisecond))
		}
	}
	if err := a.filterTraffic(ctx); err != nil {
		a.counters.addError(err)
		faults = append(faults, fmt.Errorf("packet filter: %w", err))
		*next = min(*next, retryMost)
	}
	return faults
}

// maxLogged limits the lines of the log about nodes of one snapshot.
const maxLogged = 10

// logLeftOut logs each node that the agent newly leaves out, and each that it no longer leaves out.
func (a *agent) logLeftOut() {
	before := a.leftOut
	a.leftOut = make(map[leftOut]bool, len(a.peers.left))
	var lines []func()
	for _, l := range a.peers.left {
		a.leftOut[l] = true
		if !before[l] {
			lines = append(lines, func() { a.log.Warn("a node is left out", "node", l.Name, "reason", l.Reason) })
		}
		delete(before, l)
	}
	for l := range before {
		lines = append(lines, func() { a.log.Warn("a node is no longer left out for a reason", "node", l.Name, "reason", l.Reason) })
	}
	for _, line := range lines[:min(len(lines), maxLogged)] {
		line()
	}
	if more := len(lines) - maxLogged; more > 0 {
		a.log.Warn("there are more changes of nodes that are left out: 'cnibox agent status' lists the nodes", "changes", more)
	}
}

// programFamily applies one family. It removes the objects of a disabled family that a former agent
// left. Until then the rules of its packet filter stay.
func (a *agent) programFamily(ctx context.Context, f *family, want *familyDecision, v6 bool) (err error) {
	defer func() { f.err = err; a.counters.addError(err) }()
	if want.on {
		f.nat = want.nat
	}
	if f.overlay == nil {
		if f.off && !want.on {
			return nil
		}
		f.overlay, err = overlay.Open(a.host.Net, overlay.Options{IPv6: v6}) //nolint:contextcheck // it listens until Close
		if err != nil {
			return err
		}
	}
	if !want.on {
		if err := f.overlay.Remove(ctx); err != nil {
			return err
		}
		err := f.overlay.Close()
		*f, *a.device(v6) = family{off: true}, device{}
		return err
	}
	f.off, f.spec, f.mtu = false, want.spec, want.mtu
	if want.err != nil {
		return want.err
	}
	losses := f.report.Losses
	f.report, err = f.overlay.Apply(ctx, f.spec)
	a.device(v6).links = f.report.Links
	a.counters.addReport(&f.report)
	if r := &f.report; len(r.Repaired) > 0 && time.Since(f.repaired) > repairLogInterval {
		f.repaired = time.Now()
		a.log.Warn("objects of the pod network were missing or changed: they were restored", "family", familyName(v6), "first", r.FirstRepair, "objects", r.Repaired)
	}
	if f.report.Losses > losses {
		a.log.Warn("notifications of the kernel were lost: the agent reads the kernel again", "family", familyName(v6), "times", f.report.Losses)
	}
	if err != nil {
		return err
	}
	f.tried = true
	return nil
}

// spec returns the desired state of one family and the MTU of pods. Its tunnel device is complete also after an error, for the packet
// filter.
func (k *knowledge) spec(v6 bool) (overlay.Spec, int, error) {
	network, _ := k.config.Family(v6)
	spec := overlay.Spec{Network: network, Peers: k.peers.family(v6), Prune: !k.fromMemory}
	subnet, ok := k.own.PodCIDR(v6)
	if !ok {
		return spec, 0, errors.New("this node has no pod network")
	}
	mtu, err := podMTU(k.config, k.underlayMTU(), v6)
	spec.Device = k.vtep(subnet, network, mtu)
	switch {
	case !network.Contains(subnet.Addr()) || subnet.Bits() <= network.Bits():
		return spec, 0, fmt.Errorf("this node's pod network %s is not within %s", subnet, network)
	case err != nil:
		return spec, 0, err
	}
	if err := k.keyFault(); err != nil {
		return spec, 0, err
	}
	if k.config.Backend.Type == backendWireGuard {
		spec.Nodes = k.nodeAddresses(v6)
	}
	return spec, mtu, nil
}

// filterTraffic applies the packet filter rules.
func (a *agent) filterTraffic(ctx context.Context) error {
	var all []overlay.NAT
	for _, f := range a.families {
		if f.nat != nil {
			all = append(all, *f.nat)
		}
	}
	return a.filter.Ensure(ctx, all)
}

// nat returns the packet filter's rules of one family, whose tunnel device is nil for host-gw. It returns nil if this
// node has no pod network of the family.
func (k *knowledge) nat(v6 bool, tunnel *overlay.VTEP) *overlay.NAT {
	subnet, ok := k.own.PodCIDR(v6)
	if !ok {
		return nil
	}
	network, _ := k.config.Family(v6)
	nat := &overlay.NAT{Network: network, Subnet: subnet, Masquerade: k.set.ipMasq, KeepPorts: k.set.keepPorts, Forward: k.set.forward}
	for _, p := range k.set.exceptions {
		if p.Addr().Is6() == v6 {
			nat.Exceptions = append(nat.Exceptions, p)
		}
	}
	if tunnel != nil {
		nat.Tunnel = &overlay.TunnelFilter{
			Port: tunnel.Port, VNI: tunnel.VNI, AnySource: !k.set.sourceFilter, Sources: k.peers.gateways(v6),
		}
	}
	if tunnel != nil && k.config.Backend.Type == backendWireGuard {
		nat.Encrypted, nat.Local = tunnel.Name, k.localNetworks(nat.Network)
	}
	return nat
}

// localNetworks returns the parts of a pod network that interfaces of this node are in. After a change of its pod network
// the node can have pods in the former one, until another node has that.
func (k *knowledge) localNetworks(network netip.Prefix) (all []netip.Prefix) {
	for i := range k.links {
		for _, addr := range k.links[i].Addresses {
			if p := addr.Prefix.Masked(); network.Contains(p.Addr()) && p.Bits() > network.Bits() && !p.IsSingleIP() && k.peerOf(p.Addr()) == nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// gateways returns the public addresses of the nodes that may send tunnelled packets.
func (p *peers) gateways(v6 bool) []netip.Addr {
	from, known := p.family(v6), &p.sources4
	if v6 {
		known = &p.sources6
	}
	if *known == nil {
		*known = make([]netip.Addr, 0, len(from))
		for i := range from {
			*known = append(*known, from[i].Gateway)
		}
	}
	return *known
}
