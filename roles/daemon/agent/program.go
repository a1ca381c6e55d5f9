package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops/overlay"
)

// family is one address family's part of the kernel.
type family struct {
	v6      bool
	overlay *overlay.Kernel
	// spec is what was asked for last, report and err what came of it.
	spec   overlay.Spec
	report overlay.Report
	err    error
	// mtu is that of pods.
	mtu int
	// tried: every peer was tried once.
	tried bool
	// warned is what was warned of last.
	warned string
	// off: the family is not enabled, and nothing of it is left.
	off bool
	// after is how long after a failure of the whole it is tried again.
	after time.Duration
}

// changes is told when the kernel is no longer as it was left.
func (f *family) changes() <-chan struct{} {
	if f == nil || f.overlay == nil {
		return nil
	}
	return f.overlay.Changes()
}

// Bounds of the time after which a family that failed as a whole is tried again.
const (
	retryLeast = 250 * time.Millisecond
	retryMost  = 30 * time.Second
)

// program makes the kernel as it has to be, family by family. next becomes the
// time until it is to be tried again, if that is sooner.
func (a *agent) program(ctx context.Context, next *time.Duration) (faults []error) {
	if a.peers == nil || a.seen != a.snapshot {
		a.peers, a.seen = choosePeers(a.snapshot, a.config, a.own, &a.known), a.snapshot
	}
	if a.peers.conflict != nil {
		faults = append(faults, a.peers.conflict)
	}
	for i, v6 := range []bool{false, true} {
		err := a.programFamily(ctx, a.families[i], v6)
		if err == nil {
			a.families[i].after = 0
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %w", familyName(v6), err))
		f := a.families[i]
		f.after = min(max(2*f.after, retryLeast), retryMost)
		*next = min(*next, f.after)
	}
	for _, f := range a.families {
		if at := f.report.RetryAt; f.err == nil && !at.IsZero() {
			*next = min(*next, max(time.Until(at), time.Millisecond))
		}
	}
	if err := a.filterTraffic(ctx); err != nil {
		faults = append(faults, fmt.Errorf("packet filter: %w", err))
		*next = min(*next, retryMost)
	}
	return faults
}

// programFamily makes one family's part, or takes away what a former life left
// of a family that is off.
func (a *agent) programFamily(ctx context.Context, f *family, v6 bool) (err error) {
	defer func() { f.err = err }()
	on := a.config.EnableIPv4
	if v6 {
		on = a.config.EnableIPv6
	}
	if f.overlay == nil {
		if f.off && !on {
			return nil
		}
		if f.overlay, err = overlay.Open(a.host.Net, overlay.Options{IPv6: v6}); err != nil { //nolint:contextcheck // it listens until Close
			return err
		}
	}
	if !on {
		if err := f.overlay.Remove(ctx); err != nil {
			return err
		}
		err := f.overlay.Close()
		*f = family{off: true}
		return err
	}
	f.off = false
	if f.spec, f.mtu, err = a.spec(ctx, v6); err != nil {
		return err
	}
	if f.report, err = f.overlay.Apply(ctx, f.spec); err != nil {
		return err
	}
	f.tried = true
	a.warn(f)
	return nil
}

// warn logs what keeps no peer from working, once: forwarding that cannot be switched on
// where /proc/sys is read-only, for instance.
func (a *agent) warn(f *family) {
	var texts []string
	for _, w := range f.report.Warnings {
		texts = append(texts, w.Error())
	}
	slices.Sort(texts)
	if text := strings.Join(texts, "; "); text != f.warned {
		if f.warned = text; text != "" {
			a.log.Warn("the node is not set as it should be", "family", familyName(f.v6), "reason", text)
		}
	}
}

// spec is what the kernel has to hold of one family.
func (a *agent) spec(ctx context.Context, v6 bool) (overlay.Spec, int, error) {
	spec := overlay.Spec{Peers: a.peers.v4, Prune: true}
	network := a.config.Network
	if v6 {
		spec.Peers, network = a.peers.v6, a.config.IPv6Network
	}
	subnet, ok := subnetOf(a.own, v6)
	switch {
	case !ok:
		return spec, 0, errors.New("this node has no pod network")
	case !network.Contains(subnet.Addr()) || subnet.Bits() <= network.Bits():
		return spec, 0, fmt.Errorf("this node's pod network %s is not within %s", subnet, network)
	}
	mtu, err := podMTU(a.config, a.underlay.mtu, v6)
	if err != nil {
		return spec, 0, err
	}
	if a.config.Backend.Type == backendVXLAN {
		spec.Device = a.vtep(subnet, network, mtu, a.vtepMAC(ctx, v6))
	}
	return spec, mtu, nil
}

// filterTraffic keeps the packet filter as it has to be.
func (a *agent) filterTraffic(ctx context.Context) error {
	var all []overlay.NAT
	for i, v6 := range []bool{false, true} {
		f := a.families[i]
		subnet, ok := subnetOf(a.own, v6)
		if f.off || f.overlay == nil || !ok {
			continue
		}
		nat := overlay.NAT{Network: a.config.Network, Subnet: subnet, Masquerade: a.set.ipMasq, KeepPorts: a.set.keepPorts, Forward: a.set.forward}
		if v6 {
			nat.Network = a.config.IPv6Network
		}
		for _, p := range a.set.exceptions {
			if p.Addr().Is6() == v6 {
				nat.Exceptions = append(nat.Exceptions, p)
			}
		}
		if f.spec.Device != nil && a.set.sourceFilter {
			nat.Tunnel = &overlay.TunnelFilter{Port: f.spec.Device.Port, VNI: f.spec.Device.VNI, Sources: a.peers.gateways(v6)}
		}
		all = append(all, nat)
	}
	return a.filter.Ensure(ctx, all)
}

// gateways are the addresses of the nodes that may send.
func (p *peers) gateways(v6 bool) []netip.Addr {
	from, known := p.v4, &p.sources4
	if v6 {
		from, known = p.v6, &p.sources6
	}
	if *known == nil {
		*known = make([]netip.Addr, 0, len(from))
		for i := range from {
			*known = append(*known, from[i].Gateway)
		}
	}
	return *known
}
