package netops

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/internal/ovsdb"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// Options configure a Net. All fields are optional.
type Options struct {
	// Probe is called for every write. Tests use it.
	Probe Probe
	// Restore returns every element that recorded attachments need. It is
	// called after the nftables tables were created anew, to fill them
	// again.
	Restore func(context.Context) ([]*Element, error)
	// Forwards returns the recorded rules of iptables' filter table. They
	// are restored after another program flushed that table.
	Forwards func(context.Context) ([]*Forward, error)
	// Sources returns the firewalld sources of recorded attachments, one for
	// each attachment. They are restored after firewalld reloaded.
	Sources func(context.Context) ([]*ZoneSource, error)
	// IPTables runs the iptables-legacy programs. Without it the legacy
	// tables are not accessible.
	IPTables IPTables
	// Alone runs a function while no other process deletes recorded objects together with their
	// records. What Restore, Forwards and Sources return is read and made within it, so that an
	// object does not return after its record was deleted. The function is called directly if
	// Alone is nil.
	Alone func(ctx context.Context, restore func() error) error
	// PodPolicy asks another process to add or delete the elements of a PodPolicy. If it fails, the Net does it itself.
	PodPolicy func(context.Context, Verb, *PodPolicy) error
	// Spent is where the Net and its clones add their times.
	Spent *Spent
}

// Spent is the time that was spent in rtnetlink and in nftables requests, in nanoseconds. The times of clones
// overlap.
type Spent struct{ Rtnetlink, Nftables atomic.Int64 }

// Net reads and changes the kernel's networking. It opens its sockets on first
// use, in the network namespace of the calling thread, and keeps them open until
// Close. It must not be used concurrently; see Clone.
//
// Its methods are for
//
//   - the Net itself: [Net.Options], [Net.Clone], [Net.Remember], [Net.Close], [Net.Rtnetlink], [Net.Probed]
//   - what is supported: [Net.HasFeature], [Net.HasKind], [Net.Firewalld]
//   - namespaces: [Net.OpenNamespace], [Net.MakeNamespace], [Net.RemoveNamespace], [Net.IsHost]
//   - specifications: [Net.Plan], [Net.Apply], [Net.Undo], [Net.AwaitOperation], [Net.Ensure], [Net.Verify], [Net.Remove],
//     [Net.PlanRepair]
//   - single changes: [Net.DeleteLinks], [Net.EnsureLinkLocal], [Net.RemoveZoneSource], [Net.RestoreUplink]
//   - what a namespace has: [Net.Link], [Net.Links], [Net.HostEnd], [Net.HostLinks], [Net.Counters], [Net.Addresses],
//     [Net.Routes], [Net.DefaultRouteLink], [Net.Rules], [Net.Sysctl], [Net.VLANs], [Net.VF], [Net.CardOf], [Net.TunnelEntries],
//     [Net.DeviceFilters], [Net.Redirects], [Net.Takeovers]
//   - where packets go: [Net.Way], [Net.KernelRoute], [Net.RouteLink], [Net.LinkToward], [Net.CheckRoute], [Net.Neighbour],
//     [Net.ForwardingEntry], [Net.BridgeEntries], [Net.Connections], [Net.SeenSources], [Net.HasAddress], [Net.EgressAddress]
//   - the rules and sets that cnibox installed: [Net.Elements], [Net.Labelled], [Net.BoundRules], [Net.SharedPolicy],
//     [Net.LostSets], [Net.FlushedSets], [Net.RestoreRules], [Net.RemoveTables], [Net.FilterTables]
//   - ports of Open vSwitch: [Net.OVSBridge], [Net.OVSPortOf], [Net.StrayOVSPorts]
//   - the policies of one pod: [Net.RestorePodPolicy], [Net.DeletePodPolicy], [Net.LacksPodPolicy], [Net.FilterBridge],
//     [Net.GroupPodLink], [Net.HasPodPorts]
//   - monitors: [Net.OpenLinkMonitor], [Net.OpenPortMonitor], [Net.OpenRulesMonitor]
type Net struct {
	probe Probe
	host  *Namespace
	nft   *nft.Client
	// restore is Options.Restore.
	restore func(context.Context) ([]*Element, error)
	// byName holds the open named namespaces.
	byName map[string]*Namespace
	// iptables is Options.IPTables.
	iptables IPTables
	// recordedForwards is Options.Forwards.
	recordedForwards func(context.Context) ([]*Forward, error)
	// sources is Options.Sources, and bus is the connection to the D-Bus
	// system bus.
	sources func(context.Context) ([]*ZoneSource, error)
	bus     *dbus.Conn
	alone   func(ctx context.Context, restore func() error) error
	// ovs is the connection to the database server of Open vSwitch on ovsSocket, if there is one.
	ovs       *ovsdb.Conn
	ovsSocket string
	// podPolicy is Options.PodPolicy.
	podPolicy func(context.Context, Verb, *PodPolicy) error
	spent     *Spent
	// remembers is set while Remember is in effect. last is the namespace that was opened last then.
	remembers bool
	last      *Namespace
}

// New returns a Net. It opens no sockets.
func New(o Options) *Net {
	if o.Spent == nil {
		o.Spent = &Spent{}
	}
	if o.Alone == nil {
		o.Alone = func(_ context.Context, restore func() error) error { return restore() }
	}
	n := &Net{
		probe: o.Probe, host: &Namespace{spent: &o.Spent.Rtnetlink}, nft: nft.New(ruleset.Schema, restorer(o.Restore)),
		restore: o.Restore, iptables: o.IPTables, sources: o.Sources, recordedForwards: o.Forwards, alone: o.Alone, podPolicy: o.PodPolicy, spent: o.Spent,
	}
	n.nft.Alone, n.nft.Spent = o.Alone, &o.Spent.Nftables
	return n
}

// restorer adapts restore to the nft package. It returns nil for nil.
func restorer(restore func(context.Context) ([]*Element, error)) func(context.Context) ([]*nft.Element, error) {
	if restore == nil {
		return nil
	}
	return func(ctx context.Context) ([]*nft.Element, error) {
		recorded, err := restore(ctx)
		els := make([]*nft.Element, 0, len(recorded))
		for _, standby := range []bool{false, true} { // of two with one key, the first is used
			for _, e := range recorded {
				if e.Standby == standby {
					els = append(els, (*nft.Element)(e))
				}
			}
		}
		return els, err
	}
}

// Options returns the options of New.
func (n *Net) Options() Options {
	return Options{Probe: n.probe, Restore: n.restore, Forwards: n.recordedForwards, Sources: n.sources, IPTables: n.iptables, Alone: n.alone, PodPolicy: n.podPolicy, Spent: n.spent}
}

// Clone returns a Net with the same options and its own sockets, for concurrent
// calls.
func (n *Net) Clone() *Net {
	return New(n.Options())
}

// Remember makes the Net read each object of the host once until forget is called, and open one namespace for nested calls with its
// path. Attachments share most of what their comparison reads. The caller changes nothing meanwhile. A difference that was found
// may be one between two reads: find it again after forget.
func (n *Net) Remember() (forget func(), err error) {
	set := func(on bool) error {
		host, err := n.host.socket()
		if err != nil {
			return err
		}
		rules, err := n.nft.Conn()
		if err != nil {
			return err
		}
		host.Remember(on)
		rules.Remember(on)
		n.remembers, n.last, n.host.settings = on, nil, nil
		if on {
			n.host.settings = map[string]string{}
		}
		return nil
	}
	return func() { _ = set(false) }, set(true)
}

// Rtnetlink returns the socket of the host's namespace, for package overlay.
func (n *Net) Rtnetlink() (*rtnl.Conn, error) { return n.host.socket() }

// Close closes the sockets. After nftables elements were deleted, the kernel
// delays the close by one RCU grace period (13 ms). Call it last.
func (n *Net) Close() error {
	return errors.Join(n.closeBus(), n.closeOVS(), n.closeNamed(), n.host.Close(), n.nft.Close())
}
