// Package pool stores address pools: leases, reservations for identities, and the times of releases.
package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// Bucket is the bucket of node.db that has a bucket for each pool, under the
// pool's network and data directory.
const Bucket = "pools"

// The first byte of a key in a pool's bucket says what is stored under it, besides
// chunkKind.
const (
	leaseKind  = 'L' // address: the Lease
	ownerKind  = 'O' // container ID, interface, address: no value; the index of Owned
	cursorKind = 'R' // range set: the address handed out last, as text

	importedKind = 'I' // nothing: see SetImported
	sizesKind    = 'S' // nothing: see SetSizes
)

// ID identifies an address pool. As in host-local, pools of different data directories are separate
// even if their networks have the same name.
type ID struct {
	DataDir string `json:"dataDir"`
	Network string `json:"network"`
}

// Netns identifies a namespace by its path and by the identity that it had when the record was written.
type Netns struct {
	Path string `json:"path,omitempty"`
	// Dev and Inode are the namespace's, or 0 if it could not be read.
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
	// Mount is the inode of the recorder's mount namespace, DirDev and DirInode are those of the path's
	// directory. A missing path means that the network namespace no longer exists only in that mount
	// namespace, or in a mount namespace with the same directory at the same path.
	Mount    uint64 `json:"mount,omitempty"`
	DirDev   uint64 `json:"dirDev,omitempty"`
	DirInode uint64 `json:"dirInode,omitempty"`
}

// Lease is one address in use.
type Lease struct {
	Address netip.Addr `json:"address"`
	// Owner has the pool's Network.
	Owner kv.Key `json:"owner"`
	// Set is the index of the range set that the address came from.
	Set   int       `json:"set"`
	Netns Netns     `json:"netns,omitzero"`
	Pod   string    `json:"pod,omitempty"`
	Time  time.Time `json:"time"`
	// Imported marks a lease that was imported from another program's files. Its namespace is unknown,
	// so a missing namespace does not release it.
	Imported bool `json:"imported,omitempty"`
	// Mirrored means that the lease is repeated in a file of the pool's data directory, which another
	// program deletes with the container.
	Mirrored bool `json:"mirrored,omitempty"`
	// Sticky is the identity for which keep.db reserves the address, or empty.
	Sticky string `json:"sticky,omitempty"`
	// Source and NIC are the name of the CloudSource and the MAC of the CloudNIC of a cloud's address.
	// They are empty for other leases.
	Source string `json:"source,omitempty"`
	NIC    string `json:"nic,omitempty"`
	// Quiet means that ADD did not announce the address, because another node announced it.
	Quiet bool `json:"quiet,omitempty"`
}

// Pool has the leases of one address pool. It is valid within its transaction.
type Pool struct {
	bitmap
	// tx is nil if released addresses are not recorded.
	tx    *bolt.Tx
	clock func() time.Time
	// Released is called by Release for each lease, if it is not nil.
	Released func(Lease)
}

// Open returns a pool. A pool that does not exist is created if tx is writable,
// else it is empty. The clock gives the times of releases.
func Open(tx *bolt.Tx, id ID, clock func() time.Time) (*Pool, error) {
	m, err := openBitmap(tx, Bucket, "pool", id)
	if err != nil {
		return nil, err
	}
	p := &Pool{bitmap: m, clock: clock}
	keepsFreed := id.DataDir == CloudDataDir || strings.HasPrefix(id.DataDir, RangeDataDir)
	if keepsFreed && tx != nil && tx.Writable() {
		p.tx = tx
	}
	return p, nil
}

// List returns the pools of a network, or all with "", by network and data
// directory.
func List(tx *bolt.Tx, network string) ([]ID, error) { return list(tx, Bucket, network) }

func list(tx *bolt.Tx, all, network string) ([]ID, error) {
	var ids []ID
	for k := range kv.WithPrefix(kv.Bucket(tx, all), kv.NetworkPrefix(network)) {
		p, rest, err := kv.DecodeKey(k, 2)
		if err != nil {
			return ids, err
		}
		if len(rest) > 0 {
			return ids, fmt.Errorf("decode key %q of %s: %w", k, all, kv.ErrDamaged)
		}
		ids = append(ids, ID{Network: p[0], DataDir: p[1]})
	}
	return ids, nil
}

// Reserve stores a lease. If its address is taken, even by the same owner, the error is a TakenError.
func (p *Pool) Reserve(l Lease) error {
	if err := p.writable(); err != nil {
		return err
	}
	a, err := normal(l.Address)
	if err != nil {
		return err
	}
	l.Address = a
	if l.Owner.Network != p.id.Network {
		return fmt.Errorf("reserve %s: %w: owner of network %.80q in a pool of %.80q", a, kv.ErrInvalid, l.Owner.Network, p.id.Network)
	}
	if _, err := l.Owner.Storable("lease's owner"); err != nil {
		return err
	}
	key := addrKey(leaseKind, a)
	if raw := p.b.Get(key); raw != nil {
		var held Lease
		if err := kv.Decode(p.name(), key, raw, &held); err != nil {
			return err
		}
		return &kv.TakenError{What: "address " + a.String(), Owner: held.Owner}
	}
	if err := kv.Put(p.b, key, l); err != nil {
		return err
	}
	if err := p.b.Put(appendAddr(ownerPrefix(l.Owner), a), nil); err != nil {
		return fmt.Errorf("reserve %s: %w", a, err)
	}
	if err := p.noteFreed(a, false); err != nil {
		return err
	}
	return p.set(a, true)
}

// Replace is like Reserve, but replaces a lease of the same owner.
func (p *Pool) Replace(l Lease) error {
	held, err := p.Lease(l.Address)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return err
	}
	if err == nil && held.Owner == l.Owner {
		if err := p.Release(l.Address); err != nil {
			return err
		}
	}
	return p.Reserve(l)
}

// Lease returns an address's lease, or an error that is ErrNotFound.
func (p *Pool) Lease(addr netip.Addr) (*Lease, error) {
	a, err := normal(addr)
	if err != nil {
		return nil, err
	}
	key := addrKey(leaseKind, a)
	raw := p.get(key)
	if raw == nil {
		return nil, fmt.Errorf("lease of %s: %w", a, kv.ErrNotFound)
	}
	var l Lease
	if err := kv.Decode(p.name(), key, raw, &l); err != nil {
		return nil, err
	}
	return &l, nil
}

// Release deletes an address's lease, even one that cannot be decoded. A missing
// lease is not an error. In a pool of CloudDataDir or RangeDataDir the time is recorded.
func (p *Pool) Release(addr netip.Addr) error { return p.release(addr, p.Released) }

// Forget is Release without a call of Released.
func (p *Pool) Forget(addr netip.Addr) error { return p.release(addr, nil) }

func (p *Pool) release(addr netip.Addr, released func(Lease)) error {
	if err := p.writable(); err != nil {
		return err
	}
	a, err := normal(addr)
	if err != nil {
		return err
	}
	l, err := p.Lease(a)
	switch {
	case errors.Is(err, kv.ErrNotFound):
		return nil
	case err == nil:
		if err := p.b.Delete(appendAddr(ownerPrefix(l.Owner), a)); err != nil {
			return fmt.Errorf("release %s: %w", a, err)
		}
		if released != nil {
			released(*l)
		}
	}
	if err := p.b.Delete(addrKey(leaseKind, a)); err != nil {
		return fmt.Errorf("release %s: %w", a, err)
	}
	if err := p.noteFreed(a, true); err != nil {
		return err
	}
	return p.set(a, false)
}

// noteFreed records that an address was released, or that it is leased.
func (p *Pool) noteFreed(a netip.Addr, free bool) error {
	if p.tx == nil {
		return nil
	}
	f, err := OpenFreed(p.tx, p.id)
	if err != nil {
		return err
	}
	if !free {
		return f.drop(a)
	}
	return f.put(a, p.clock())
}

// Leases returns all leases in the order of addresses, IPv4 first. A record that
// cannot be decoded gives an error, and the iteration continues. The pool must not
// be changed meanwhile.
func (p *Pool) Leases() iter.Seq2[Lease, error] {
	return func(yield func(Lease, error) bool) {
		for k, v := range kv.WithPrefix(p.b, []byte{leaseKind}) {
			var l Lease
			err := kv.Decode(p.name(), k, v, &l)
			if err != nil {
				l = Lease{}
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// Owned returns the owner's leases in this pool, in the order of addresses. It
// reads no other leases.
func (p *Pool) Owned(owner kv.Key) ([]Lease, error) {
	if owner.Network != p.id.Network {
		return nil, nil
	}
	prefix := ownerPrefix(owner)
	var own []Lease
	var faults []error
	for k := range kv.WithPrefix(p.b, prefix) {
		a, ok := parseAddr(k[len(prefix):])
		if !ok {
			faults = append(faults, fmt.Errorf("decode key %.200q of %s: %w", k, p.name(), kv.ErrDamaged))
			continue
		}
		l, err := p.Lease(a)
		switch {
		case errors.Is(err, kv.ErrNotFound):
		case err != nil:
			faults = append(faults, err)
		case l.Owner == owner:
			own = append(own, *l)
		}
	}
	return own, errors.Join(faults...)
}

// Owners returns the leased addresses with their owners, by container ID, interface and address. It
// decodes no lease, because decoding 250 of them takes 4 ms. The pool must not be changed meanwhile.
func (p *Pool) Owners() iter.Seq2[netip.Addr, kv.Key] {
	return func(yield func(netip.Addr, kv.Key) bool) {
		for k := range kv.WithPrefix(p.b, []byte{ownerKind}) {
			names, rest, err := kv.DecodeKey(k[1:], 2)
			if err != nil {
				continue
			}
			a, ok := parseAddr(rest)
			if !ok {
				continue
			}
			if !yield(a, kv.Key{Network: p.id.Network, ContainerID: names[0], IfName: names[1]}) {
				return
			}
		}
	}
}

// SetImported records that the files which other programs left for the pool were imported.
func (p *Pool) SetImported() error {
	if err := p.writable(); err != nil {
		return err
	}
	return p.b.Put([]byte{importedKind}, []byte{1})
}

// Imported reports whether SetImported was called.
func (p *Pool) Imported() bool { return p.get([]byte{importedKind}) != nil }

// SetSizes stores how many IPv4 and IPv6 addresses the pool can give, for metrics. An IPv6 range can
// have more than 2^64.
func (p *Pool) SetSizes(sizes [2]float64) error {
	if err := p.writable(); err != nil {
		return err
	}
	var raw []byte
	for _, n := range sizes {
		raw = binary.BigEndian.AppendUint64(raw, math.Float64bits(n))
	}
	if bytes.Equal(raw, p.b.Get([]byte{sizesKind})) {
		return nil
	}
	return p.b.Put([]byte{sizesKind}, raw)
}

// Sizes returns what SetSizes stored last, or zeros.
func (p *Pool) Sizes() (sizes [2]float64) {
	if raw := p.get([]byte{sizesKind}); len(raw) == 16 {
		for i := range sizes {
			sizes[i] = math.Float64frombits(binary.BigEndian.Uint64(raw[8*i:]))
		}
	}
	return sizes
}

// Cursor returns the address that SetCursor stored for a range set.
func (p *Pool) Cursor(set int) (netip.Addr, bool, error) {
	key, err := cursorKey(set)
	raw := p.get(key)
	if err != nil || raw == nil {
		return netip.Addr{}, false, err
	}
	a, err := netip.ParseAddr(string(raw))
	if err != nil {
		return netip.Addr{}, false, fmt.Errorf("decode cursor %d of %s: %w: %w", set, p.name(), kv.ErrDamaged, err)
	}
	return a, true, nil
}

// Cursors returns the address that SetCursor stored for each range set.
func (p *Pool) Cursors() (map[int]netip.Addr, error) {
	var faults []error
	all := map[int]netip.Addr{}
	for k := range kv.WithPrefix(p.b, []byte{cursorKind}) {
		if len(k) != 5 {
			faults = append(faults, fmt.Errorf("decode key %q of %s: %w", k, p.name(), kv.ErrDamaged))
			continue
		}
		set := int(binary.BigEndian.Uint32(k[1:]))
		a, ok, err := p.Cursor(set)
		if ok {
			all[set] = a
		}
		faults = append(faults, err)
	}
	return all, errors.Join(faults...)
}

// SetCursor stores the address that was allocated last from a range set.
func (p *Pool) SetCursor(set int, a netip.Addr) error {
	if err := p.writable(); err != nil {
		return err
	}
	key, err := cursorKey(set)
	if err != nil {
		return err
	}
	if a, err = normal(a); err != nil {
		return err
	}
	if err := p.b.Put(key, []byte(a.String())); err != nil {
		return fmt.Errorf("store cursor %d of %s: %w", set, p.name(), err)
	}
	return nil
}
