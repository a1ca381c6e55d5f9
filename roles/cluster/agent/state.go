package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles/cluster/egress"
	"github.com/cnibox/cnibox/store"
)

// agentState is the state after a reconciliation. It is immutable.
type agentState struct {
	summary
	// finished is the time when the reconciliation ended.
	finished time.Time
	left     []leftOut
	overlays [2]*overlay.Kernel
	// reports are those of overlays. unread is the time since which the registry has not been read, zero
	// if it can be read. restored counts restorations of the packet filter.
	reports  [2]overlay.Report
	unread   time.Time
	restored int
	// since is the older count of datagrams.
	since datagrams
}

// summary is what status reports about this node.
type summary struct {
	Node     string `json:"node"`
	Registry string `json:"registry"`
	// RegistryError is set while the registry cannot be read, RegistrySince is when that began.
	RegistryError string    `json:"registryError,omitempty"`
	RegistrySince time.Time `json:"registryErrorSince,omitzero"`
	Backend       string    `json:"backend,omitempty"`
	// Port and TxChecksum are those of VXLAN. TxChecksum is "" if the agent does not set it.
	Port       uint16 `json:"port,omitempty"`
	TxChecksum string `json:"txChecksumOffload,omitempty"`
	Ready      bool   `json:"ready"`
	// Reason is why pods must wait, or a fault that does not affect working peers.
	Reason string `json:"reason,omitempty"`
	// Warnings are faults of the node's settings, which affect no peer.
	Warnings  []string       `json:"warnings,omitempty"`
	Checksums *checksumFault `json:"wrongChecksums,omitempty"`
	// Unheard are nodes that do not answer through the tunnel.
	Unheard   []unheardPeer      `json:"unheard,omitempty"`
	Interface string             `json:"interface,omitempty"`
	PodCIDRs  []netip.Prefix     `json:"podCIDRs,omitempty"`
	IPv4      *familySummary     `json:"ipv4,omitempty"`
	IPv6      *familySummary     `json:"ipv6,omitempty"`
	Peers     store.OverlayPeers `json:"peers"`
	// Egress has the egress addresses of pods, if the agent gives any.
	Egress *egress.Status `json:"egress,omitempty"`
}

// familySummary is one family of a summary.
type familySummary struct {
	Device string `json:"device,omitempty"`
	MAC    string `json:"mac,omitempty"`
	// PublicKey is this node's key of WireGuard.
	PublicKey string     `json:"publicKey,omitempty"`
	Local     netip.Addr `json:"local"`
	Public    netip.Addr `json:"public"`
	MTU       int        `json:"mtu"`
	// LostNotifications is how often notifications of the kernel were lost. The agent read the
	// kernel again each time.
	LostNotifications int    `json:"lostNotifications,omitempty"`
	Error             string `json:"error,omitempty"`
}

// publishState writes the state to the files that CNI calls read, and makes it available to the
// registry and to clients of status and health.
func (a *agent) publishState(ctx context.Context, faults []error) {
	for i, v6 := range []bool{false, true} {
		if f := a.families[i]; len(faults) == 0 && a.enabled(v6) && !f.tried {
			faults = append(faults, fmt.Errorf("%s: no peer was tried yet", familyName(v6)))
		}
	}
	s := a.buildState(errors.Join(faults...))
	if r := &a.reporter; a.own != nil || !r.files.readyBefore {
		if err := r.files.write(a.handOff(&s.summary), a.host.Now); err != nil {
			faults = append(faults, err)
			s.Ready, s.Reason = false, errors.Join(faults...).Error()
		}
	}
	s.Warnings = a.warnings(ctx)
	a.reporter.report(ctx, s) // before the registry and systemd are informed
	if s.Ready && !a.publisher.announced {
		a.publisher.announced = true
		if !a.fromMemory { // the registry does not answer; setOwn leads to another announcement
			sendLatest(a.publisher.ready, struct{}{})
		}
		notifySystemd(a.host)
	}
}

// buildState returns the present state.
func (a *agent) buildState(fault error) *agentState {
	if a.policies != nil {
		fault = errors.Join(fault, a.policies.Unready())
	}
	fault = errors.Join(fault, a.egress.keeper.Unready())
	s := &agentState{finished: time.Now(), since: a.datagrams[0], summary: summary{
		Node: a.registry.node, Registry: a.registry.name, Ready: fault == nil, Interface: a.underlay.link,
	}}
	if fault == nil {
		fault = errors.Join(a.configErr, a.acquireErr, a.formerErr, detourError(a.families[0].report.Detours, a.families[1].report.Detours))
	}
	if fault != nil {
		s.Reason = fault.Error()
	}
	s.unread = a.unread
	if a.filter != nil {
		s.restored = a.filter.Restored()
	}
	if a.registryErr != nil {
		s.RegistryError, s.RegistrySince = a.registryErr.Error(), a.unread
	}
	if a.own != nil {
		s.PodCIDRs = a.own.PodCIDRs
		s.Node = a.own.Name
	}
	if a.config != nil {
		s.Backend = a.config.Backend.Type
	}
	if s.Backend == backendVXLAN {
		s.Port, s.TxChecksum = a.config.Backend.VXLANPort(), a.config.Backend.TxChecksum
	}
	if a.peers != nil {
		s.left = a.peers.left
	}
	var enabled []*family
	for i, v6 := range []bool{false, true} {
		f := a.families[i]
		if !a.enabled(v6) || f.overlay == nil {
			continue
		}
		s.overlays[i], s.reports[i] = f.overlay, f.report
		enabled = append(enabled, f)
		sum := &familySummary{MTU: f.mtu, MAC: f.report.MAC, LostNotifications: f.report.Losses}
		sum.Local, sum.Public = a.underlay.family(v6)
		*[]**familySummary{&s.IPv4, &s.IPv6}[i] = sum
		if f.spec.Device != nil {
			sum.Device = f.spec.Device.Name
		}
		if a.config.Backend.Type == backendWireGuard {
			sum.PublicKey = a.publicKey(v6)
		}
		if f.err != nil {
			sum.Error = f.err.Error()
		}
	}
	s.Peers = countPeers(enabled)
	return s
}

// countPeers counts the other nodes. A node with both families counts once, and is programmed if
// both are.
func countPeers(enabled []*family) (n store.OverlayPeers) {
	for _, f := range enabled {
		n = store.OverlayPeers{Wanted: f.report.Wanted, Programmed: f.report.Programmed}
	}
	if len(enabled) < 2 {
		return n
	}
	f4, f6 := enabled[0], enabled[1]
	n.Wanted = countUnion(f4.spec.Peers, f6.spec.Peers, func(p overlay.Peer) string { return p.Name })
	n.Programmed = n.Wanted - countUnion(f4.report.Missing, f6.report.Missing, func(name string) string { return name })
	for _, f := range enabled {
		if f.report.Wanted != len(f.spec.Peers) { // the spec could not be applied, so the report is not of it
			n.Programmed = 0
		}
	}
	return n
}

// countUnion counts the names of two lists that are sorted by name.
func countUnion[T any](a, b []T, name func(T) string) (n int) {
	for ; len(a) > 0 && len(b) > 0; n++ {
		order := strings.Compare(name(a[0]), name(b[0]))
		if order <= 0 {
			a = a[1:]
		}
		if order >= 0 {
			b = b[1:]
		}
	}
	return n + len(a) + len(b)
}

// handOff returns the content of the hand-off file for CNI calls.
func (a *agent) handOff(s *summary) *store.Overlay {
	o := &store.Overlay{BootID: a.host.Store.BootID(), Ready: s.Ready, IPMasq: a.set.ipMasq, IPMasqExcept: a.set.exceptions, Peers: s.Peers, Egress: a.egress.handOff()}
	if !s.Ready {
		o.Reason = s.Reason
	}
	if a.own == nil {
		return o
	}
	for i, v6 := range []bool{false, true} {
		f := a.families[i]
		subnet, ok := a.own.PodCIDR(v6)
		if !a.enabled(v6) || !ok || f.mtu == 0 {
			continue
		}
		network, _ := a.config.Family(v6)
		*[]**store.OverlayFamily{&o.IPv4, &o.IPv6}[i] = &store.OverlayFamily{Networks: []netip.Prefix{network}, Subnet: subnet, MTU: f.mtu}
		if o.MTU == 0 || f.mtu < o.MTU {
			o.MTU = f.mtu
		}
	}
	return o
}
