// Package egress maintains the kernel objects by which pods leave the cluster with an address that another node has: an
// nftables table, policy rules with a routing table for each address, and the address itself on its holder.
//
// A packet of a pod gets a mark that stands for its address (table.go). On the pod's node the mark selects a route to
// the address's holder, which the holder needs no mark to know: it gives each packet from the overlay the mark of the
// address of its source, and translates it. What has a mark and is not on the way that the mark stands for is dropped,
// so that a rule, a route or an address that another program deleted lets no packet out with the node's own address.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// MaxAddresses is the number of addresses that the marks of one node have room for.
const MaxAddresses = 31

// Spec is the state that Apply makes.
type Spec struct {
	// Networks are the cluster's pod networks. Near are further networks that pods reach as without an egress address.
	Networks, Near []netip.Prefix
	// Nodes are the addresses of all nodes, which pods reach as without an egress address.
	Nodes []netip.Addr
	// Tunnels are the devices that lead to other nodes: replies from the outside arrive on them, although no route leads there.
	Tunnels []string
	// Arrivals are the devices on which packets of other nodes' pods arrive.
	Arrivals []string
	// Addresses have different indexes. Pods and Remote refer to them.
	Addresses []Address
	// Pods are those of this node that have an egress address.
	Pods []Pod
	// Remote has the index of the address by the address of a pod of another node. Only addresses that this node
	// holds are in it.
	Remote map[netip.Addr]int
}

// Address is an egress address.
type Address struct {
	Addr netip.Addr
	// Index is from 1 to MaxAddresses.
	Index int
	// Held is true on the node that has the address. On other nodes packets go to Via, over a link with this index. Without
	// Via they are dropped.
	Held bool
	Via  netip.Addr
	Link int
}

// Pod is an address of a pod of this node. Packets are the pod's if they arrive on the device with this MAC and
// source address. Index is that of its egress address. Packets to the outside are dropped if it is 0.
type Pod struct {
	Device, MAC string
	Addr        netip.Addr
	Index       int
}

// Kernel maintains a Spec. It is safe for concurrent use.
type Kernel struct {
	net     *netops.Net
	nft     *nft.Client
	monitor *nft.Monitor

	mu sync.Mutex
	// shape and entries are the table that was made last, as far as known is set.
	shape   Spec
	entries map[string]*nft.Entry
	known   bool
	// swept is true after the objects of a former process were removed.
	swept bool
}

// Open opens a Kernel in the network namespace of the process. n must not be used by others. It does not change the kernel.
func Open(n *netops.Net) (*Kernel, error) {
	k := &Kernel{net: n, nft: nft.New(nil, nil)}
	var err error
	k.monitor, err = nft.OpenMonitor(k.nft, k.disturbed, nft.Watched{Table: ownTable()})
	if err != nil {
		return nil, errors.Join(err, k.nft.Close())
	}
	return k, nil
}

func (k *Kernel) disturbed(nft.Watched) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = false
}

// Changes returns a channel that receives a value when another program changes the table. The caller should call Apply again.
func (k *Kernel) Changes() <-chan struct{} { return k.monitor.Changes() }

// Close closes the sockets. It does not change the kernel.
func (k *Kernel) Close() error {
	k.monitor.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.nft.Close(), k.net.Close())
}

// Exists reports whether the table exists.
func Exists(ctx context.Context) (bool, error) {
	c := nft.New(nil, nil)
	names, err := c.Tables(ctx, unix.NFPROTO_INET)
	if errors.Is(err, nlconn.ErrNotSupported) { // a kernel without nftables
		err = nil
	}
	return slices.Contains(names, ownTable().Name), errors.Join(err, c.Close())
}

// Apply makes the kernel match want. Routes are there before packets get the marks that lead to them, and until packets
// do not get them any more.
func (k *Kernel) Apply(ctx context.Context, want Spec) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.net.Rtnetlink()
	if err != nil {
		return err
	}
	stale, err := k.ensureRoutes(ctx, c, want.Addresses)
	err = errors.Join(err, k.relaxRPFilter(ctx, want.Tunnels), k.ensureTable(ctx, want))
	if err == nil && len(stale) > 0 {
		err = k.write(ctx, c, "delete routes of egress addresses", stale)
	}
	k.swept = k.swept || err == nil
	return err
}

// Remove deletes the table, the rules and the routes. The address of a holder ends by its lifetime.
func (k *Kernel) Remove(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known, k.swept = false, false
	err := k.commit(ctx, "delete", []nlconn.Message{ownTable().Message(unix.NFT_MSG_DELTABLE, 0)})
	if errors.Is(err, nlconn.ErrNotExist) || errors.Is(err, nlconn.ErrNotSupported) {
		err = nil
	}
	c, e := k.net.Rtnetlink()
	if e != nil {
		return errors.Join(err, e)
	}
	stale, e := k.ensureRoutes(ctx, c, nil)
	if len(stale) > 0 {
		e = errors.Join(e, k.write(ctx, c, "delete routes of egress addresses", stale))
	}
	return errors.Join(err, e)
}

// ensureTable changes the elements that differ, or replaces the table if more does.
func (k *Kernel) ensureTable(ctx context.Context, want Spec) error {
	shape, feature := want.shape(), want.feature()
	entries, err := want.entries(feature)
	if err != nil {
		return err
	}
	if k.known && equalShapes(k.shape, shape) {
		var add, remove []*nft.Entry
		for c := range keyed.Maps(k.entries, entries, (*nft.Entry).Equal) {
			if c.Kind != keyed.Add {
				remove = append(remove, c.Have.Bare())
			}
			if c.Kind != keyed.Remove {
				add = append(add, c.Want)
			}
		}
		if len(add)+len(remove) == 0 {
			return nil
		}
		msgs := nft.ElementMessages(unix.NFT_MSG_DELSETELEM, 0, bySet(remove))
		msgs = append(msgs, nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, bySet(add))...)
		if err := k.commit(ctx, "change", msgs); err == nil {
			k.entries = entries
			return nil
		} else if !nft.IsRefused(err) {
			return err
		}
	}
	k.known = false
	// Deleting an absent table is an error, so make it first.
	msgs := []nlconn.Message{ownTable().Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), ownTable().Message(unix.NFT_MSG_DELTABLE, 0)}
	all := make([]*nft.Entry, 0, len(entries))
	for _, e := range entries {
		all = append(all, e)
	}
	msgs = slices.Concat(msgs, feature.Messages(), nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, bySet(all)))
	if err := k.commit(ctx, "make", msgs); err != nil {
		return err
	}
	k.shape, k.entries, k.known = shape, entries, true
	return nil
}

// relaxRPFilter makes IPv4 accept packets from the outside that arrive on tunnels, if it checks the way back to their source. The kernel uses
// the larger one of the values of a device and of all (kernel: ip-sysctl, rp_filter).
func (k *Kernel) relaxRPFilter(ctx context.Context, tunnels []string) error {
	const strict, loose = "1", "2"
	var errs []error
	for _, device := range tunnels {
		key := "net/ipv4/conf/" + device + "/rp_filter"
		own, err := k.net.Sysctl(ctx, nil, key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all, err := k.net.Sysctl(ctx, nil, "net/ipv4/conf/all/rp_filter")
		if max(own, all) == strict {
			err = k.net.Ensure(ctx, netops.Spec{Objects: []netops.Object{&netops.Sysctl{In: netops.Host, Shared: true, Key: key, Value: loose}}}, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// bySet sorts entries by their set, because a message has the entries of one set.
func bySet(all []*nft.Entry) []*nft.Entry {
	sorting.Func(all, func(a, b *nft.Entry) int { return strings.Compare(a.ID(), b.ID()) })
	return all
}

func (k *Kernel) commit(ctx context.Context, verb string, msgs []nlconn.Message) error {
	what := fmt.Sprintf("%s nftables table %s", verb, ownTable())
	return k.net.Probed(func() string { return what }, func() error {
		return nlconn.Explain(k.nft.Commit(ctx, 0, msgs...), what)
	})
}

// Holding is where a node has, or would have, an address.
type Holding struct {
	// Link is the link that has the address, or the one to which the route to it leads.
	Link string
	// Own is true if the node has the address without an end of its lifetime: it is not an egress address then.
	Own bool

	index int
	mac   []byte
}

// Find returns where this node would hold an address.
func (k *Kernel) Find(ctx context.Context, a netip.Addr) (h Holding, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.net.Rtnetlink()
	if err != nil {
		return h, err
	}
	all, err := c.Addresses(ctx, 0)
	if err != nil {
		return h, err
	}
	var l *rtnl.Link
	if i := slices.IndexFunc(all, func(have rtnl.Addr) bool { return have.Prefix.Addr() == a }); i >= 0 {
		h.Own = all[i].Flags&unix.IFA_F_PERMANENT != 0 || !all[i].Prefix.IsSingleIP()
		l, err = c.LinkByIndex(ctx, all[i].Link)
	} else {
		var way netops.Way
		way, err = k.net.Way(ctx, nil, netops.Packet{To: a})
		if err == nil && way.Local {
			h.Own = true
			return h, nil
		}
		if err == nil {
			l, err = c.Link(ctx, way.Link)
		}
	}
	if err != nil {
		return h, err
	}
	h.Link, h.index, h.mac = l.Name, l.Index, l.MAC
	return h, nil
}

// Hold gives the node an address for a time, which is a multiple of seconds. The kernel removes it then, at most kernelLate
// later, unless Hold is called again. The node's own packets do not use the address.
func (k *Kernel) Hold(ctx context.Context, h Holding, a netip.Addr, lifetime time.Duration) error {
	addr := rtnl.Addr{Link: h.index, Prefix: netip.PrefixFrom(a, a.BitLen()), Flags: unix.IFA_F_NODAD}
	if a.Is4() {
		addr.Flags = 0
	}
	return k.addressed(ctx, "hold", a, addr.Limited(uint32(lifetime/time.Second)))
}

// Release removes an address that Hold gave the node.
func (k *Kernel) Release(ctx context.Context, h Holding, a netip.Addr) error {
	addr := rtnl.Addr{Link: h.index, Prefix: netip.PrefixFrom(a, a.BitLen())}
	err := k.addressed(ctx, "release", a, addr.Message(unix.RTM_DELADDR))
	if errors.Is(err, nlconn.ErrNotExist) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (k *Kernel) addressed(ctx context.Context, verb string, a netip.Addr, m nlconn.Message) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.net.Rtnetlink()
	if err != nil {
		return err
	}
	return k.write(ctx, c, fmt.Sprintf("%s egress address %s", verb, a), []nlconn.Message{m})
}

// Announce announces an address that the node holds to the hosts on its link. A link without a MAC announces nothing.
func (h Holding) Announce(a netip.Addr) error {
	if len(h.mac) != 6 {
		return nil
	}
	return announce(h.index, h.mac, a)
}

func (k *Kernel) write(ctx context.Context, c *rtnl.Conn, what string, msgs []nlconn.Message) error {
	return k.net.Probed(func() string { return what }, func() error {
		results, broken := c.Exchange(ctx, msgs)
		return nlconn.Explain(errors.Join(append(results, broken)...), what)
	})
}

// Forget deletes the kernel's tracked connections that pods began with destinations that are not inside, unless the destination sees the address that
// sources has for the pod. The kernel applies the translation of a connection's first packet to all its packets.
func (k *Kernel) Forget(ctx context.Context, sources map[netip.Addr]netip.Addr, inside func(netip.Addr) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, err := k.net.Connections(ctx, 0)
	if err != nil {
		return err
	}
	var changes []netops.Change
	for _, c := range all {
		proto := netops.ProtocolName(c.Protocol)
		source, is := sources[c.Client]
		if !is || c.Source == source || c.To.Port() == 0 || !slices.Contains([]string{"tcp", "udp", "sctp"}, proto) || inside(c.Server) {
			continue
		}
		f := &netops.Flows{In: netops.Host, Proto: proto, Port: c.To.Port(), Dst: c.To.Addr(), Src: c.Client, ReplySrc: c.Server}
		changes = append(changes, netops.Change{Do: netops.Step{Verb: netops.VerbDel, Object: f}})
	}
	if len(changes) == 0 {
		return nil
	}
	return k.net.Apply(ctx, netops.Plan{Changes: changes}, nil)
}
