package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// errRaced means that another node wrote meanwhile. The caller reads again.
var errRaced = errors.New("another node wrote first")

// maxOwn bounds the number of records of one node.
const maxOwn = 4

// attempts bounds the attempts to get a subnet while other nodes take the chosen ones.
const attempts = 20

// Acquire publishes the node by compare-and-swap. A record may be the node's own if the node or a clone of it wrote it,
// if it has the node's public address, or if it belongs to the node's lease. The Owner decides.
func (r *Registry) Acquire(ctx context.Context, want cluster.Node) (cluster.Node, error) {
	r.acquiring.Lock()
	defer r.acquiring.Unlock()
	if err := want.Check(); err != nil {
		return cluster.Node{}, fmt.Errorf("publish node: %w", err)
	}
	if !want.PublicIP.IsValid() && !want.PublicIPv6.IsValid() {
		return cluster.Node{}, fmt.Errorf("publish node: %w: publicIP is missing, which identifies the node", cluster.ErrInvalid)
	}
	wait := web.Backoff{Min: 5 * time.Millisecond, Max: 500 * time.Millisecond}
	var got cluster.Node
	err := wait.Retry(ctx, attempts, errRaced, func(try int) (err error) {
		got, err = r.acquire(ctx, want, try == 1)
		if try == 1 && r.watched.Load() != nil && (errors.Is(err, cluster.ErrConflict) || errors.Is(err, cluster.ErrFull)) {
			got, err = r.acquire(ctx, want, false) // the state of the Watch may be outdated
		}
		return err
	})
	if err != nil {
		return cluster.Node{}, fmt.Errorf("publish node %s: %w", want.Address(), err)
	}
	r.o.Owner.Published(ctx, &got)
	return got, nil
}

// acquire tries once. With watched it may use the state of a Watch. If another node has written a
// key since then, the write fails.
func (r *Registry) acquire(ctx context.Context, want cluster.Node, watched bool) (cluster.Node, error) {
	var now *state
	var err error
	if watched {
		now, err = r.readWatched(ctx, &want)
	}
	if now == nil && err == nil {
		now, err = r.read(ctx, &want)
	}
	if err != nil {
		return want, err
	}
	if err := r.choose(now, &want); err != nil {
		return want, err
	}
	request := cluster.SubnetRequest{Demanded: want.PodCIDRs, Previous: r.o.Owner.Former(), Others: now.others}
	own := now.ownRecord(want.PodCIDRs, request.Previous)
	if own != nil {
		request.Name, request.Own = own.node.Name, own.node.PodCIDRs
	}
	want.PodCIDRs, err = now.config.Assign(request)
	if err != nil {
		return want, err
	}
	want.Name = keyOf(want.PodCIDRs)
	stays := own != nil && own.node.Name == want.Name
	var author cluster.Author
	if own != nil {
		author = own.node.Author
	}
	if stays && own.err == nil && len(now.own) == 1 && r.o.Owner.Unchanged(&own.node, &want) {
		alive, err := r.keep(ctx, own.kv.Lease)
		if alive {
			r.held.publish(want.Name)
		}
		if err != nil || alive {
			return want, err
		}
	}
	want.Author = r.o.Owner.Next(ctx, author)
	if err := r.publish(ctx, want, now, stays, own); err != nil {
		return want, err
	}
	if stays || len(want.PodCIDRs) == 1 {
		return want, nil
	}
	return want, r.withdrawDuplicate(ctx, &want)
}

// found is a record of this node.
type found struct {
	kv   keyValue
	node cluster.Node
	err  error
}

// state is the content of a list. own are the records that may be this node's, until choose removes those of others.
type state struct {
	config *cluster.Config
	own    []found
	others []*cluster.Node
}

// choose moves the records of other machines from own to others. If only such records are left and one is of a clone
// of this machine, the error is cluster.ErrConflict.
func (r *Registry) choose(s *state, want *cluster.Node) error {
	wrote := slices.ContainsFunc(s.own, func(f found) bool { return r.o.Owner.Wrote(f.node.Author) })
	var clone error
	s.own = slices.DeleteFunc(s.own, func(f found) bool {
		err := r.o.Owner.Check(&f.node, want, false)
		a := f.node.Author
		other := wrote && a != (cluster.Author{}) && !r.o.Owner.Related(a) // it has an address that was this node's
		if err == nil && !other {
			return false
		}
		s.others = append(s.others, &f.node)
		if r.o.Owner.Related(a) {
			clone = err
		}
		return true
	})
	if len(s.own) > 0 {
		return nil
	}
	return clone
}

// near reports whether a record may be this node's.
func (r *Registry) near(n, want *cluster.Node) bool {
	return n.SameAddress(want) || r.o.Owner.Related(n.Author)
}

// read lists everything and separates this node's records from those of others.
func (r *Registry) read(ctx context.Context, want *cluster.Node) (*state, error) {
	var s *state
	var conf []byte
	lease, _, held := r.held.get()
	_, err := r.list(ctx, func() { s, conf = &state{}, nil }, func(kv keyValue) {
		if string(kv.Key) == r.configKey() {
			conf = kv.Value
			return
		}
		name, ok := r.name(kv.Key)
		if !ok {
			return
		}
		n, err := decode(name, kv.Value)
		if r.near(&n, want) || isHeld(&kv, name, held, lease) {
			s.own = append(s.own, found{kv, n, err})
			return
		}
		s.others = append(s.others, &n)
	})
	if err != nil {
		return nil, err
	}
	if conf == nil {
		return nil, r.noConfig()
	}
	s.config, _, err = cluster.ParseSubnetConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.configKey(), err)
	}
	return s, nil
}

// isHeld reports whether a record is the node's own although it may have another
// address: it belongs to the node's lease, or another program wrote it over the node's
// record without a lease.
func isHeld(kv *keyValue, name, held string, lease int64) bool {
	return lease != 0 && (kv.Lease == lease || kv.Lease == 0 && name == held)
}

// readWatched is like read, but uses the state of a Watch, so that etcd does not send everything
// twice. It still reads this node's records. It returns nil if there is no Watch, or if an invalid
// record may be this node's.
func (r *Registry) readWatched(ctx context.Context, want *cluster.Node) (*state, error) {
	watched := r.watched.Load()
	if watched == nil {
		return nil, nil
	}
	s := &state{config: watched.Config()}
	own := map[string]bool{}
	lease, _, held := r.held.get()
	if held != "" {
		own[held] = true // even if it has changed
	}
	whole := watched.Each(func(n *cluster.Node) {
		if own[n.Name] || r.near(n, want) {
			own[n.Name] = true
			return
		}
		s.others = append(s.others, n)
	})
	if !whole || len(own) > maxOwn {
		return nil, nil
	}
	for name := range own {
		kv, err := r.c.get(ctx, r.subnets()+name)
		if err != nil {
			return nil, fmt.Errorf("read node: %w", err)
		}
		if kv == nil {
			continue
		}
		n, err := decode(name, kv.Value)
		if !r.near(&n, want) && !isHeld(kv, name, held, lease) {
			return nil, nil // it belongs to another node now
		}
		s.own = append(s.own, found{*kv, n, err})
	}
	sorting.Func(s.own, func(a, b found) int { return strings.Compare(a.node.Name, b.node.Name) })
	return s, nil
}

// ownRecord returns the node's own record that counts: the one with the demanded subnets, else one that fits and has
// previous subnets, the newest first, else the first that fits.
func (s *state) ownRecord(demanded, previous []netip.Prefix) *found {
	for i := range s.own {
		if p := s.own[i].node.PodCIDRs; len(p) > 0 && slices.Equal(p, demanded) {
			return &s.own[i]
		}
	}
	for _, before := range previous {
		for i := range s.own {
			if p := s.own[i].node.PodCIDRs; slices.Contains(p, before) && s.fits(p) {
				return &s.own[i]
			}
		}
	}
	for i := range s.own {
		if p := s.own[i].node.PodCIDRs; len(p) > 0 && s.fits(p) {
			return &s.own[i]
		}
	}
	return nil
}

// fits reports whether all subnets fit the configuration.
func (s *state) fits(subnets []netip.Prefix) bool {
	return !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return !s.config.Fits(p) })
}

// publish writes the node's key if it has not changed since it was read, and removes
// the node's other records. A reservation stays a reservation.
func (r *Registry) publish(ctx context.Context, n cluster.Node, now *state, stays bool, own *found) error {
	value, err := encode(&n)
	if err != nil {
		return err
	}
	lease := int64(0)
	if !stays || own.kv.Lease != 0 || !own.node.SameAddress(&n) && !r.o.Owner.Wrote(own.node.Author) {
		if lease, err = r.lease(ctx); err != nil {
			return err
		}
	}
	key := []byte(r.subnets() + n.Name)
	revision := int64(0)
	if stays {
		revision = own.kv.ModRevision
	}
	t := txnRequest{Compare: []compare{unchanged(key, revision)}, Success: []operation{{Put: &putRequest{Key: key, Value: value, Lease: lease}}}}
	if i := strings.IndexByte(n.Name, '&'); !stays && i >= 0 && n.PodCIDRs[0].Addr().Is4() && !now.has(n.PodCIDRs[0]) {
		// No other key may begin with the same IPv4 subnet.
		first := r.subnets() + n.Name[:i]
		none := unchanged([]byte(first), 0)
		none.RangeEnd = end(first)
		t.Compare = append(t.Compare, none)
	}
	for i := range now.own {
		if o := &now.own[i]; o.node.Name != n.Name {
			t.Success = append(t.Success, operation{Delete: &deleteRequest{Key: o.kv.Key}})
			t.Compare = append(t.Compare, unchanged(o.kv.Key, o.kv.ModRevision))
		}
	}
	var got txnResponse
	if err := r.c.call(ctx, "/v3/kv/txn", t, &got); err != nil {
		var f *failure
		if errors.As(err, &f) && f.code() == codeNotFound {
			// The lease has expired meanwhile. The next attempt gets another one.
			r.held.set(0, 0)
		}
		return err
	}
	if !got.Succeeded {
		return errRaced
	}
	r.held.publish(n.Name)
	return nil
}

// has reports whether a record of this node has the subnet, so that its key does not conflict.
func (s *state) has(p netip.Prefix) bool {
	return slices.ContainsFunc(s.own, func(f found) bool { return slices.Contains(f.node.PodCIDRs, p) })
}

// withdrawDuplicate removes a new record if an older one has one of its subnets. etcd compares whole
// keys only, so two nodes can choose the same IPv6 subnet with different IPv4 subnets.
func (r *Registry) withdrawDuplicate(ctx context.Context, n *cluster.Node) error {
	var mine keyValue
	var others []keyValue
	_, err := r.list(ctx, func() { mine, others = keyValue{}, nil }, func(kv keyValue) {
		name, ok := r.name(kv.Key)
		if name == n.Name {
			mine = kv
		} else if p, err := subnetsOf(name); ok && err == nil && slices.ContainsFunc(p, func(p netip.Prefix) bool {
			return slices.ContainsFunc(n.PodCIDRs, p.Overlaps)
		}) {
			others = append(others, kv)
		}
	})
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.CreateRevision < mine.CreateRevision {
			return errors.Join(errRaced, r.remove(ctx, mine))
		}
	}
	return nil
}

// remove deletes a key if it has not changed since it was read.
func (r *Registry) remove(ctx context.Context, kv keyValue) error {
	return r.c.call(ctx, "/v3/kv/txn", txnRequest{
		Compare: []compare{unchanged(kv.Key, kv.ModRevision)},
		Success: []operation{{Delete: &deleteRequest{Key: kv.Key}}},
	}, &txnResponse{})
}

// Release deletes the node's records, including reservations, and its lease. Records of other machines stay.
func (r *Registry) Release(ctx context.Context) error {
	r.acquiring.Lock()
	defer r.acquiring.Unlock()
	me := cluster.Node{PublicIP: r.o.PublicIP, PublicIPv6: r.o.PublicIPv6}
	lease, _, name := r.held.get()
	var own []keyValue
	_, err := r.list(ctx, func() { own = nil }, func(kv keyValue) {
		is, ok := r.name(kv.Key)
		if !ok {
			return
		}
		n, _ := decode(is, kv.Value)
		mine := is == name || lease != 0 && kv.Lease == lease || r.near(&n, &me)
		if mine && r.o.Owner.Check(&n, &me, false) == nil {
			own = append(own, kv)
		}
	})
	for _, kv := range own {
		err = errors.Join(err, r.remove(ctx, kv))
	}
	if err == nil && lease != 0 {
		err = r.c.call(ctx, "/v3/lease/revoke", leaseRequest{ID: lease}, &struct{}{})
	}
	if err != nil {
		return fmt.Errorf("withdraw node: %w", err)
	}
	r.held.set(0, 0)
	r.held.publish("")
	return nil
}
