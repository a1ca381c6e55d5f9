package ranges

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Takeover moves the addresses of whereabouts' pools to pages, and back. All of its calls can be repeated after they were
// killed.
type Takeover struct {
	objects *kube.Whereabouts
	pages   cluster.Ranges
}

// NewTakeover opens the cluster of a kubeconfig file. Pages are in a namespace, by default in kube.DefaultNamespace.
func NewTakeover(kubeconfig, namespace string) (*Takeover, error) {
	c, err := rest.Open(rest.Kubeconfig(kubeconfig))
	if err != nil {
		return nil, err
	}
	r, err := kube.Open(kube.Options{Client: c, Node: "none", Config: &cluster.Config{}, Namespace: namespace})
	if err != nil {
		return nil, err
	}
	return &Takeover{kube.NewWhereabouts(c), r}, nil
}

// movedPool is a pool of whereabouts with its place in pages.
type movedPool struct {
	*kube.IPPool
	of   netip.Prefix
	pool string
}

// interval returns the addresses of the pool.
func (p *movedPool) interval() leasing.Interval { return leasing.Whole(p.of.Masked()) }

// maxHolderText bounds the texts of a holder, so that a page with 256 of them is not too large.
const maxHolderText = 600

// holders returns the containers of the pool's allocations.
func (p *movedPool) holders() (out []container, err error) {
	for offset, a := range p.Spec.Allocations {
		at, ok := addressAt(p.of.Addr(), offset)
		if !ok || !p.of.Contains(at) || len(a.ContainerID)+len(a.IfName)+len(a.PodRef) > maxHolderText {
			return nil, fmt.Errorf("%s: %w: allocation %.40q: correct or delete it", p.Name(), cluster.ErrInvalid, offset)
		}
		out = append(out, container{at, a.ContainerID, a.IfName, a.PodRef})
	}
	return out, nil
}

// addressAt returns the address at a distance from the first one.
func addressAt(first netip.Addr, offset string) (netip.Addr, bool) {
	n, err := strconv.ParseUint(offset, 10, 63)
	b := first.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	a := netip.AddrFrom16(b)
	if first.Is4() {
		a = a.Unmap()
	}
	return a, err == nil
}

// offsetOf returns the distance of an address from the first one.
func offsetOf(first, a netip.Addr) string {
	from, to := first.As16(), a.As16()
	return strconv.FormatUint(binary.BigEndian.Uint64(to[8:])-binary.BigEndian.Uint64(from[8:]), 10)
}

// pools returns the pools of whereabouts.
func (t *Takeover) pools(ctx context.Context) (out []*movedPool, err error) {
	all, err := t.objects.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		m := &movedPool{IPPool: p}
		m.of, err = p.Range()
		if err == nil {
			m.pool, err = p.NetworkName()
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// Remaining returns the pools that Import would take over, and the number of their addresses. With back these are the
// pools that Export would return.
func (t *Takeover) Remaining(ctx context.Context, back bool) (names []string, addresses int, err error) {
	all, err := t.objects.Pools(ctx)
	for _, p := range all {
		if back && p.Taken() || !back && !p.Moved() {
			names = append(names, p.Name())
			addresses += len(p.Spec.Allocations)
		}
	}
	return names, addresses, err
}

// Import takes over all pools of whereabouts. The agents then make leases for the containers.
func (t *Takeover) Import(ctx context.Context) error {
	found, err := t.objects.HasNodeSlices(ctx)
	if err != nil {
		return err
	}
	if found {
		return errors.New("whereabouts divides ranges among nodes (NodeSlicePools), which cnibox does not take over")
	}
	wait := web.Backoff{Min: 2 * time.Millisecond, Max: 200 * time.Millisecond}
	for try := 1; ; try++ {
		err := t.importAll(ctx)
		if !errors.Is(err, rest.ErrConflict) || try == raceLimit || wait.Wait(ctx, 0) != nil {
			return err
		}
	}
}

func (t *Takeover) importAll(ctx context.Context) error {
	pools, err := t.pools(ctx)
	if err != nil {
		return err
	}
	reserved, err := t.objects.Reservations(ctx)
	if err != nil {
		return err
	}
	begun := slices.ContainsFunc(pools, func(p *movedPool) bool { return p.Taken() })
	for _, p := range pools {
		switch {
		case p.Returning():
			err = fmt.Errorf("%s is being returned: finish the return with --back first", p.Name())
		case !p.Taken():
			err = t.check(ctx, p, reserved)
		}
		if err == nil && !begun { // what a return that was killed has left
			err = t.clear(ctx, p, nil)
		}
		if err != nil {
			return err
		}
	}
	for _, p := range pools {
		if err := t.importPool(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if a pool of whereabouts cannot be taken over.
func (t *Takeover) check(ctx context.Context, p *movedPool, reserved map[string]bool) error {
	holders, err := p.holders()
	if err != nil {
		return err
	}
	for i := range holders {
		if h := &holders[i]; !reserved[p.Metadata.Namespace+"/"+kube.ReservationName(h.Address, p.pool)] {
			return fmt.Errorf("%s: %s of pod %q has no OverlappingRangeIPReservation. If its network has enable_overlapping_ranges false, delete its pods first; else repeat the command", p.Name(), h.Address, h.Pod)
		}
	}
	return t.eachBlock(ctx, p, func(b *block) error {
		if err := reservedError(p, b); err != nil || b.Machine == "" {
			return err
		}
		return fmt.Errorf("%s: node %s has the block %s of cnibox, so addresses may be in use twice: delete the containers with them and wait until its agent has returned the block", p.Name(), b.Node, b.interval())
	})
}

// reservedError returns an error for an address of a reservation: whereabouts has none that move between nodes.
func reservedError(p *movedPool, b *block) error {
	if b.Reserved == "" {
		return nil
	}
	return fmt.Errorf("%s: a reservation of cnibox has %s: delete the pods that use it, and then end it with 'cnibox range release'", p.Name(), b.First)
}

// importPool takes over a pool. First whereabouts refuses ADD with it, then the pages have its containers, and last it is
// empty, which permits the agents to use the range.
func (t *Takeover) importPool(ctx context.Context, p *movedPool) error {
	holders, err := p.holders()
	if err == nil && !p.Taken() {
		err = t.objects.Take(ctx, p.IPPool)
	}
	if err != nil || len(p.Spec.Allocations) == 0 {
		return err
	}
	if err := t.place(ctx, p, holders); err != nil {
		return err
	}
	for i := range holders {
		if err := t.objects.Unreserve(ctx, p.Metadata.Namespace, kube.ReservationName(holders[i].Address, p.pool)); err != nil {
			return err
		}
	}
	return t.objects.Empty(ctx, p.IPPool)
}

// place writes the containers of a pool into pages, each with a block of its node. It leaves out containers whose pod
// does not exist.
func (t *Takeover) place(ctx context.Context, p *movedPool, holders []container) error {
	since := time.Now().UTC().Truncate(time.Second)
	pages := map[netip.Addr][]block{}
	for _, h := range holders {
		node, err := t.objects.PodNode(ctx, h.Pod)
		if err != nil {
			return err
		}
		if node != "" {
			first := pageOf(h.Address)
			pages[first] = append(pages[first], block{First: h.Address, Last: h.Address, Node: node, Since: since, Holders: []container{h}})
		}
	}
	for first, blocks := range pages {
		_, _, err := changePage(ctx, t.pages, pageName(p.pool, first), func(pg *page, _ bool) bool {
			pg.Pool, pg.First = p.pool, first
			before := len(pg.Blocks)
			for i := range blocks {
				if len(pg.free([]leasing.Interval{blocks[i].interval()})) > 0 { // else a killed call has placed it
					pg.add(blocks[i])
				}
			}
			return len(pg.Blocks) > before
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachBlock calls fn with each block of a pool.
func (t *Takeover) eachBlock(ctx context.Context, p *movedPool, fn func(*block) error) error {
	var faults []error
	err := t.pages.Pages().List(ctx, func(name string, raw []byte, _ string) {
		if isRegister(name) {
			return
		}
		pg, err := decodePage(name, raw)
		if err != nil {
			faults = append(faults, err)
			return
		}
		for i := range pg.Blocks {
			if b := &pg.Blocks[i]; pg.Pool == p.pool && b.interval().Overlaps(p.interval()) {
				faults = append(faults, fn(b))
			}
		}
	})
	return errors.Join(append(faults, err)...)
}

// clear removes the blocks of a pool that no node uses, and those of gone nodes.
func (t *Takeover) clear(ctx context.Context, p *movedPool, gone map[string]bool) error {
	pages := map[netip.Addr]bool{}
	unused := func(b *block) bool {
		return b.interval().Overlaps(p.interval()) && b.Reserved == "" && (b.Machine == "" || gone[b.Node])
	}
	err := t.eachBlock(ctx, p, func(b *block) error {
		if unused(b) {
			pages[pageOf(b.First)] = true
		}
		return nil
	})
	for first := range pages {
		if err == nil {
			_, _, err = changePage(ctx, t.pages, pageName(p.pool, first), func(pg *page, _ bool) bool {
				before := len(pg.Blocks)
				pg.Blocks = slices.DeleteFunc(pg.Blocks, func(b block) bool { return unused(&b) })
				return len(pg.Blocks) < before
			})
		}
	}
	return err
}

// Export returns all pools to whereabouts, with the containers that have addresses now. It returns the names of nodes
// whose agents have not written their containers into pages yet. Then no pool was returned: repeat it.
func (t *Takeover) Export(ctx context.Context) (waiting []string, err error) {
	pools, err := t.pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pools { // fails before a change if an address cannot be returned
		if !p.Taken() {
			continue
		}
		if err := t.eachBlock(ctx, p, func(b *block) error { return reservedError(p, b) }); err != nil {
			return nil, err
		}
	}
	for _, p := range pools {
		if p.Taken() && !p.Returning() {
			if err := t.objects.BeginReturn(ctx, p.IPPool); err != nil {
				return nil, err
			}
		}
	}
	holders := map[*movedPool][]container{}
	gone := map[string]bool{}
	for _, p := range pools {
		holders[p], err = t.collect(ctx, p, gone)
		if err != nil {
			return nil, err
		}
	}
	for node, is := range gone {
		if !is {
			waiting = append(waiting, node)
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		return waiting, nil
	}
	for _, p := range pools {
		if err := t.exportPool(ctx, p, holders[p]); err != nil {
			return nil, err
		}
	}
	for _, p := range pools {
		if err := t.clear(ctx, p, gone); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// collect returns the containers of a pool that is being returned. gone gets the nodes that have blocks of it, and
// whether they do not exist any more.
func (t *Takeover) collect(ctx context.Context, p *movedPool, gone map[string]bool) ([]container, error) {
	if !p.Taken() {
		return nil, nil
	}
	out, err := p.holders()
	if err != nil {
		return nil, err
	}
	err = t.eachBlock(ctx, p, func(b *block) error {
		_, known := gone[b.Node]
		switch {
		case b.Reserved != "":
			return reservedError(p, b)
		case b.Machine == "":
			out = append(out, b.Holders...)
		case !known:
			is, err := t.pages.Gone(ctx, b.Node)
			if err != nil {
				return err
			}
			gone[b.Node] = is
		}
		return nil
	})
	return out, err
}

// exportPool returns a pool to whereabouts.
func (t *Takeover) exportPool(ctx context.Context, p *movedPool, holders []container) error {
	if !p.Taken() {
		return nil
	}
	add := map[string]*kube.IPAllocation{}
	for _, h := range holders {
		if !p.of.Contains(h.Address) {
			continue // a block is larger than the pool
		}
		a := kube.IPAllocation{ContainerID: h.ContainerID, PodRef: h.Pod, IfName: h.IfName}
		add[offsetOf(p.of.Addr(), h.Address)] = &a
		if err := t.objects.Reserve(ctx, p.Metadata.Namespace, kube.ReservationName(h.Address, p.pool), a); err != nil {
			return err
		}
	}
	return t.objects.Return(ctx, p.IPPool, add)
}
