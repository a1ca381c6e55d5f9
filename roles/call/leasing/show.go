package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// The states of an address in `cnibox ipam show`.
const (
	stateLive     = "live"     // leased, and the container is not known to be dead
	stateUnlinked = "unlinked" // leased, the container exists, and its host link is missing
	stateLeaked   = "leaked"   // leased to a container that is certainly dead
	stateImported = "imported" // leased according to a reference plugin's file
	stateSticky   = "sticky"   // kept for the identity that last had it
	stateReserved = "reserved" // kept because an operator pinned it
	stateCooling  = "cooling"  // no longer kept, but not given out yet
	stateExpired  = "expired"  // free for any identity
)

// ShownAddress is one address that is leased or reserved.
type ShownAddress struct {
	Address netip.Addr `json:"address"`
	Network string     `json:"network"`
	DataDir string     `json:"dataDir"`
	State   string     `json:"state"`
	// Identity is the identity that the address is kept for, or would be kept for after
	// DEL; empty if it is not kept.
	Identity    string `json:"identity,omitempty"`
	Pod         string `json:"pod,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Netns       string `json:"netns,omitempty"`
	// Since is the time at which the address was leased or, without a lease, released or
	// reserved.
	Since time.Time `json:"since"`
	// Expires is the time at which other identities may get the address; zero for never,
	// and while it is leased.
	Expires time.Time `json:"expires,omitzero"`
}

// ShownPool is the usage of a pool.
type ShownPool struct {
	store.PoolID
	Leased   int `json:"leased"`
	Reserved int `json:"reserved"`
	// Sets are the pool's range sets, if a configuration was given.
	Sets []ShownSet `json:"sets,omitempty"`
}

// ShownSet is one range set of a pool.
type ShownSet struct {
	Subnets string `json:"subnets"`
	// Size is the number of addresses that the set can give. It is a text because an IPv6
	// set can have more than 2^64. Used is the number of leased and kept addresses.
	Size string `json:"size"`
	Used int    `json:"used"`
}

// Shown is the output of `cnibox ipam show`.
type Shown struct {
	Addresses []ShownAddress `json:"addresses"`
	Pools     []ShownPool    `json:"pools"`
	now       time.Time
}

// inventory has all leases and reservations as of one time.
type inventory struct {
	leases       map[store.PoolID][]store.Lease
	reservations map[store.PoolID][]store.Reservation
	attachments  map[store.Key]*store.Attachment
}

// pools returns all pools with an entry, by network and data directory.
func (v *inventory) pools() []store.PoolID {
	var ids []store.PoolID
	for id := range v.leases {
		ids = append(ids, id)
	}
	for id := range v.reservations {
		if _, twice := v.leases[id]; !twice {
			ids = append(ids, id)
		}
	}
	sorting.Func(ids, func(a, b store.PoolID) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), strings.Compare(a.DataDir, b.DataDir))
	})
	return ids
}

// takeInventory reads the leases and reservations of a network, or of all networks for
// "".
func takeInventory(ctx context.Context, h *roles.Host, network string) (*inventory, error) {
	v := &inventory{
		leases: map[store.PoolID][]store.Lease{}, reservations: map[store.PoolID][]store.Reservation{},
		attachments: map[store.Key]*store.Attachment{},
	}
	err := h.Store.KeepView(ctx, func(keep *store.KeepTx) error {
		err := keep.EachSticky(network, func(pool *store.StickyPool) error {
			all, err := store.Collect(pool.All())
			if err == nil && len(all) > 0 {
				v.reservations[pool.ID()] = all
			}
			return err
		})
		if err != nil {
			return err
		}
		return h.Store.View(ctx, func(tx *store.Tx) error { return v.read(tx, network) })
	})
	return v, err
}

func (v *inventory) read(tx *store.Tx, network string) error {
	err := tx.EachPool(network, func(pool *store.Pool) error {
		leases, err := store.Collect(pool.Leases())
		if len(leases) > 0 {
			v.leases[pool.ID()] = leases
		}
		return err
	})
	if err != nil {
		return err
	}
	attachments, err := tx.Attachments(network)
	for i := range attachments {
		v.attachments[attachments[i].Key] = &attachments[i]
	}
	return err
}

// stateOf returns the state of a lease.
func (v *inventory) stateOf(c *attachment.Census, l store.Lease) string {
	if a := v.attachments[l.Owner]; a != nil {
		switch {
		case c.Dead(a):
			return stateLeaked
		case c.LinkMissing(a):
			return stateUnlinked
		}
		return stateLive
	}
	switch {
	case l.Imported:
		return stateImported
	case c.NetnsGone(l.Netns):
		return stateLeaked
	}
	return stateLive
}

// shownState returns the state of a reservation whose address has no lease.
func shownState(r *store.Reservation, now time.Time) string {
	switch r.Stage(now) {
	case store.Cooling:
		return stateCooling
	case store.Expired:
		return stateExpired
	}
	if r.Pinned {
		return stateReserved
	}
	return stateSticky
}

// Show lists leased and reserved addresses, all or those of the given networks and
// addresses. plans contain the sizes of pools.
func Show(ctx context.Context, h *roles.Host, of []string, plans map[store.PoolID]*Plan) (*Shown, error) {
	v, err := takeInventory(ctx, h, "")
	if err != nil {
		return nil, err
	}
	census, err := attachment.NewCensus(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("read the host's interfaces: %w", err)
	}
	out := &Shown{Addresses: []ShownAddress{}, Pools: []ShownPool{}, now: h.Now()}
	if err := v.checkKnown(of, plans); err != nil {
		return nil, err
	}
	ids := v.pools()
	for id := range plans { // a pool without entries
		if slices.Contains(of, id.Network) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		all := v.pool(census, id, out.now)
		shown := slices.DeleteFunc(slices.Clone(all), func(a ShownAddress) bool {
			return len(of) > 0 && !slices.Contains(of, a.Network) && !slices.Contains(of, a.Address.String())
		})
		out.Addresses = append(out.Addresses, shown...)
		if len(shown) > 0 || len(of) == 0 || slices.Contains(of, id.Network) {
			out.Pools = append(out.Pools, fill(id, all, plans[id]))
		}
	}
	return out, nil
}

// checkKnown returns an error for networks and addresses without an entry, because a
// mistyped address must not look free.
func (v *inventory) checkKnown(of []string, plans map[store.PoolID]*Plan) error {
	networks := map[string]bool{}
	for _, id := range v.pools() {
		networks[id.Network] = true
	}
	for id := range plans {
		networks[id.Network] = true
	}
	var errs []error
	for _, what := range of {
		if networks[what] {
			continue
		}
		a, err := netip.ParseAddr(what)
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q has neither leases nor reservations: %w", what, store.ErrNotFound))
		} else if _, err := v.find(a); errors.Is(err, store.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pool lists one pool's addresses, in order.
func (v *inventory) pool(census *attachment.Census, id store.PoolID, now time.Time) []ShownAddress {
	var all []ShownAddress
	leased := map[netip.Addr]bool{}
	for _, l := range v.leases[id] {
		leased[l.Address] = true
		all = append(all, ShownAddress{
			Address: l.Address, Network: id.Network, DataDir: id.DataDir, State: v.stateOf(census, l), Identity: l.Sticky, Pod: l.Pod,
			ContainerID: l.Owner.ContainerID, IfName: l.Owner.IfName, Netns: l.Netns.Path, Since: l.Time,
		})
	}
	for i := range v.reservations[id] {
		r := &v.reservations[id][i]
		for _, a := range r.Addresses {
			if leased[a] {
				continue
			}
			one := ShownAddress{
				Address: a, Network: id.Network, DataDir: id.DataDir, State: shownState(r, now), Identity: r.Identity, Pod: r.Pod,
				ContainerID: r.Holder.ContainerID, IfName: r.Holder.IfName, Since: cmp.Or(r.Released, r.Used, r.Created),
			}
			one.Expires, _ = r.Free()
			all = append(all, one)
		}
	}
	sorting.Func(all, func(a, b ShownAddress) int { return a.Address.Compare(b.Address) })
	return all
}

// fill counts a pool's addresses.
func fill(id store.PoolID, all []ShownAddress, p *Plan) ShownPool {
	out := ShownPool{PoolID: id}
	if p != nil {
		for _, s := range p.Sets {
			out.Sets = append(out.Sets, ShownSet{Subnets: s.String(), Size: s.Size().String()})
		}
	}
	for _, a := range all {
		switch a.State {
		case stateExpired:
			continue
		case stateLive, stateUnlinked, stateLeaked, stateImported:
			out.Leased++
		default:
			out.Reserved++
		}
		if p == nil {
			continue
		}
		for i, s := range p.Sets {
			if r := s.RangeOf(a.Address); r != nil && r.Allows(a.Address) {
				out.Sets[i].Used++
			}
		}
	}
	return out
}

// Table returns the addresses as a table.
func (s *Shown) Table() (head []string, rows [][]string) {
	for _, a := range s.Addresses {
		expires := "-"
		if !a.Expires.IsZero() {
			expires = brief(a.Expires.Sub(s.now))
		}
		rows = append(rows, []string{
			a.Address.String(), a.Network, a.State, cmp.Or(a.Pod, a.Identity, "-"), cmp.Or(a.ContainerID, "-"), cmp.Or(a.IfName, "-"),
			cmp.Or(a.Netns, "-"), brief(s.now.Sub(a.Since)), expires,
		})
	}
	return []string{"ADDRESS", "NETWORK", "STATE", "FOR", "CONTAINER", "IFNAME", "NETNS", "AGE", "EXPIRES IN"}, rows
}

// brief returns a duration in whole seconds.
func brief(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// mostDigits is the length of a size that says something: those of IPv6 subnets never end.
const mostDigits = 10

// String returns the usage of the pools.
func (s *Shown) String() string {
	var lines []string
	for _, p := range s.Pools {
		line := fmt.Sprintf("pool %q in %s: %d leased, %d reserved", p.Network, cmp.Or(p.DataDir, "a directory that is not known"), p.Leased, p.Reserved)
		for _, set := range p.Sets {
			size := " of " + set.Size
			if len(set.Size) > mostDigits {
				size = ""
			}
			line += fmt.Sprintf("; %s: %d%s used", set.Subnets, set.Used, size)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// find returns the pool that has an address.
func (v *inventory) find(a netip.Addr) (store.PoolID, error) {
	var found []store.PoolID
	for _, id := range v.pools() {
		leased := slices.ContainsFunc(v.leases[id], func(l store.Lease) bool { return l.Address == a })
		reserved := slices.ContainsFunc(v.reservations[id], func(r store.Reservation) bool { return slices.Contains(r.Addresses, a) })
		if leased || reserved {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return store.PoolID{}, fmt.Errorf("%s is neither leased nor reserved: %w", a, store.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return store.PoolID{}, fmt.Errorf("%s is in pools of several networks, %s: choose one with --network", a, networks(found))
}

// networks lists the networks of pools.
func networks(ids []store.PoolID) string {
	var names []string
	for _, id := range ids {
		names = append(names, fmt.Sprintf("%q", id.Network))
	}
	return strings.Join(slices.Compact(names), ", ")
}

// errNoPool is the error of a verb that cannot choose between pools.
var errNoPool = errors.New("cannot choose a pool: give --network, or a configuration with --conf")
