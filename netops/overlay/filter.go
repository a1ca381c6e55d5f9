package overlay

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// NAT describes the packet filter of a pod network of one address family. The
// rules are in the table "inet cnibox_overlay".
type NAT struct {
	// Network is the cluster's pod network. Subnet is this node's part of it.
	Network, Subnet netip.Prefix
	// Masquerade masquerades the traffic from pods to destinations outside the
	// pod network, and the forwarded traffic from outside the pod network to
	// remote pods.
	Masquerade bool
	// KeepPorts disables the random choice of source ports. With the random
	// choice, simultaneous new connections rarely choose the same port.
	KeepPorts bool
	// Exceptions are networks that pods reach with their own addresses.
	Exceptions []netip.Prefix
	// Forward accepts the network's packets in iptables' FORWARD chains.
	Forward bool
	// Tunnel, if not nil, drops tunnelled packets from unknown nodes and from pods. Those that WireGuard encrypts need only the rules for
	// pods.
	Tunnel *TunnelFilter
	// Encrypted is the WireGuard device through which all packets between pods of different nodes must
	// pass, or "". Others are dropped. Local are the networks of this node's pods, without Subnet.
	Encrypted string
	Local     []netip.Prefix
}

// TunnelFilter accepts VXLAN packets of one VNI only from known nodes. Pods send none to nodes: this node would give them its own address as the
// source, which the others accept.
type TunnelFilter struct {
	Port uint16
	// VNI has no effect for WireGuard.
	VNI uint32
	// AnySource accepts VXLAN packets from unknown hosts.
	AnySource bool
	// Sources are the other nodes' addresses. The filter keeps the slice, so the
	// caller must not change it later.
	Sources []netip.Addr
}

// Filter maintains the rules of NATs in the kernel. It is safe for concurrent
// use.
type Filter struct {
	// nft has its own socket. tables uses the same socket.
	nft     *nft.Client
	tables  iptables.Tables
	net     *netops.Net
	monitor *nft.Monitor
	// stop ends watchLegacy.
	stop    context.CancelFunc
	watches sync.WaitGroup

	mu sync.Mutex
	// have has the NATs from which the table was made. sources has the tunnels'
	// sources by family (true for IPv6). Both are valid only if known is set.
	have    []NAT
	sources map[bool]*sources
	known   bool
	// last has the last sources of each family, because they rarely change.
	last map[bool]*sources
	// restored counts how often the table was made again without a change of the NATs.
	restored int
	// forwarded has the networks that iptables' FORWARD chains accept, by family, as far as forwardKnown is
	// set. blocked names rules of other programs before.
	forwarded    [2]netip.Prefix
	forwardKnown bool
	blocked      error
}

// sources has addresses as they were given, and those of one family.
type sources struct {
	given []netip.Addr
	all   map[netip.Addr]struct{}
}

// OpenFilter opens a Filter in the network namespace of the process. It does not
// change the kernel.
func OpenFilter(n *netops.Net) (*Filter, error) {
	client := nft.New(nil, nil)
	f := &Filter{
		nft: client, net: n, tables: iptables.Tables{NFT: client, Run: n.Options().IPTables},
		last: map[bool]*sources{},
	}
	var err error
	f.monitor, err = nft.OpenMonitor(client, f.disturbed, append(forwardChains(), nft.Watched{Table: ownTable()})...)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.watches.Go(func() { f.watchLegacy(ctx) })
	return f, nil
}

// Changes returns a channel that receives a value when another program changes or
// flushes the table, or a FORWARD chain of iptables. The caller should call Ensure again.
func (f *Filter) Changes() <-chan struct{} { return f.monitor.Changes() }

// Restored returns how often Ensure made the table again because another program had changed it.
func (f *Filter) Restored() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restored
}

// Close closes the sockets. It does not change the kernel.
func (f *Filter) Close() error {
	f.stop()
	f.watches.Wait()
	f.monitor.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nft.Close()
}

func (f *Filter) disturbed(w nft.Watched) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.Chain == "" {
		f.known = false
	} else {
		f.forwardKnown = false
	}
}

// Recheck makes the next Ensure read iptables' chains, as if a notification had been lost.
func (f *Filter) Recheck() { f.disturbed(forwardChains()[0]) }

// Ensure makes the table match want, which has at most one NAT of each address
// family. It replaces the whole table in one transaction, or changes only the
// tunnels' sources if nothing else differs. If nothing differs and no notification
// arrived, it sends no request.
func (f *Filter) Ensure(ctx context.Context, want []NAT) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want, sources, err := f.normalized(want)
	if err != nil {
		return err
	}
	return errors.Join(f.ensureTable(ctx, want, sources), f.ensureForward(ctx, want))
}

func (f *Filter) ensureTable(ctx context.Context, want []NAT, sources map[bool]*sources) error {
	if f.known && reflect.DeepEqual(f.have, want) {
		err := f.ensureSources(ctx, sources)
		if err == nil {
			return nil
		}
		if !nft.IsRefused(err) {
			return err
		}
	}
	f.known = false
	msgs, err := tableMessages(want, sources)
	if err != nil {
		return err
	}
	if err := f.commit(ctx, "make", msgs); err != nil {
		return err
	}
	if f.have != nil && reflect.DeepEqual(f.have, want) {
		f.restored++
	}
	f.have, f.sources, f.known = want, sources, true
	return nil
}

// ensureSources adds and deletes the elements that differ in the sets of sources.
func (f *Filter) ensureSources(ctx context.Context, want map[bool]*sources) error {
	var add, del []*nft.Entry
	for _, is6 := range []bool{false, true} {
		if f.sources[is6] == want[is6] { // they are many
			continue
		}
		for c := range keyed.Maps(f.sources[is6].all, want[is6].all, keyed.Same) {
			n := &nft.Entry{Set: sourceSet(is6), Key: c.Key.AsSlice()}
			if c.Kind == keyed.Add {
				add = append(add, n)
			} else {
				del = append(del, n)
			}
		}
	}
	if len(add)+len(del) == 0 {
		return nil
	}
	msgs := nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, add)
	msgs = append(msgs, nft.ElementMessages(unix.NFT_MSG_DELSETELEM, 0, del)...)
	if err := f.commit(ctx, "change", msgs); err != nil {
		return err
	}
	f.sources = want
	return nil
}

func (f *Filter) commit(ctx context.Context, verb string, msgs []nlconn.Message) error {
	what := fmt.Sprintf("%s nftables table %s", verb, ownTable())
	return f.net.Probed(func() string { return what }, func() error {
		return nlconn.Explain(f.nft.Commit(ctx, 0, msgs...), what)
	})
}

// Remove deletes the table, and the overlay's rules in iptables' chains.
func (f *Filter) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = false
	err := f.commit(ctx, "delete", []nlconn.Message{ownTable().Message(unix.NFT_MSG_DELTABLE, 0)})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	blocked, more := f.changeForwards(ctx, [2]netip.Prefix{})
	f.forwardKnown = false
	return errors.Join(err, blocked, more)
}

// normalized checks want and separates the tunnels' sources from it.
func (f *Filter) normalized(want []NAT) ([]NAT, map[bool]*sources, error) {
	want = slices.Clone(want)
	of, seen := map[bool]*sources{}, map[bool]bool{}
	for i := range want {
		w := &want[i]
		is6 := w.Network.Addr().Is6()
		for _, p := range slices.Concat([]netip.Prefix{w.Network, w.Subnet}, w.Exceptions, w.Local) {
			if !p.IsValid() || p.Addr().Is6() != is6 {
				return nil, nil, fmt.Errorf("packet filter of %s: network %q: %w: it is of another address family", w.Network, p, nlconn.ErrInvalid)
			}
		}
		if seen[is6] {
			return nil, nil, fmt.Errorf("packet filter of %s: %w: a second network of the same address family", w.Network, nlconn.ErrInvalid)
		}
		seen[is6] = true
		w.Exceptions, w.Local = disjoint(w.Exceptions), disjoint(append(slices.Clip(w.Local), w.Subnet))
		if w.Tunnel == nil {
			continue
		}
		t := *w.Tunnel
		w.Tunnel = &t
		of[is6] = f.sourcesOf(is6, t.Sources)
		w.Tunnel.Sources = nil
	}
	sorting.Func(want, func(a, b NAT) int {
		return cmp.Compare(a.Network.Addr().BitLen(), b.Network.Addr().BitLen())
	})
	return want, of, nil
}

// disjoint sorts networks and omits those within others, because the kernel
// refuses them.
func disjoint(all []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(all))
	for i, p := range all {
		sorted[i] = p.Masked()
	}
	sorting.Func(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// sourcesOf returns the addresses of one family.
func (f *Filter) sourcesOf(is6 bool, given []netip.Addr) *sources {
	if last := f.last[is6]; last != nil && slices.Equal(last.given, given) {
		return last
	}
	s := &sources{given, make(map[netip.Addr]struct{}, len(given))}
	for _, a := range given {
		if a.Is6() == is6 && a.IsValid() {
			s.all[a.WithZone("")] = struct{}{}
		}
	}
	f.last[is6] = s
	return s
}

// vniBytes returns a VNI in the form of the VXLAN header (RFC 7348, section 5).
func vniBytes(vni uint32) []byte { return binary.BigEndian.AppendUint32(nil, vni)[1:] }
