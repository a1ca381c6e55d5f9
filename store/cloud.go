package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// bucketCloud is of node.db and keep.db; its keys are names of sources.
const bucketCloud = "cloud"

// CloudNIC is one interface of this node as the cloud describes it, whatever the
// cloud. What a cloud does not tell is zero.
type CloudNIC struct {
	// MAC is in the usual colon form; "*" stands for any interface.
	MAC string `json:"mac"`
	// ID is the cloud's own name of it: "eni-0123456789abcdef0".
	ID string `json:"id,omitempty"`
	// Device is its number as the cloud counts, 0 for the first.
	Device  int  `json:"device"`
	Primary bool `json:"primary,omitempty"`
	MTU     int  `json:"mtu,omitempty"`
	// Subnets have no two of the same prefix.
	Subnets []CloudSubnet `json:"subnets,omitempty"`
	// Network is what is reached without a translated source address: the prefixes
	// of the VNet or VPC.
	Network []netip.Prefix `json:"network,omitempty"`
	DNS     []netip.Addr   `json:"dns,omitempty"`
}

// CloudSubnet is what a NIC has of one subnet.
type CloudSubnet struct {
	Prefix netip.Prefix `json:"prefix"`
	// Gateway is the cloud's router.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Own are the addresses of the node itself: never a pod's.
	Own []netip.Addr `json:"own,omitempty"`
	// Addresses and Ranges are for pods: single addresses, and whole prefixes.
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	Ranges    []netip.Prefix `json:"ranges,omitempty"`
}

// Usable tells whether there is an address for pods.
func (n *CloudNIC) Usable() bool {
	return slices.ContainsFunc(n.Subnets, func(s CloudSubnet) bool { return len(s.Addresses)+len(s.Ranges) > 0 })
}

// Gives tells whether an address is one for pods.
func (s *CloudSubnet) Gives(a netip.Addr) bool {
	return slices.Contains(s.Addresses, a) || slices.ContainsFunc(s.Ranges, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(s.Own, a)
}

// CloudSource is what is known of one source of addresses: the last good reply, and
// when to ask again. It is the same for all processes of the node.
type CloudSource struct {
	// Name is the provider and where it is asked: "azure http://168.63.129.16".
	Name string `json:"name"`
	// NICs are of the last good reply, which came at Fetched.
	NICs    []CloudNIC `json:"nics,omitempty"`
	Fetched time.Time  `json:"fetched,omitzero"`
	// Revision counts the replies that differed from the one before.
	Revision uint64 `json:"revision"`
	// Provider is who gave that reply, where several are tried: "aws".
	Provider string `json:"provider,omitempty"`
	// Dropped is what of that reply is not used, and why.
	Dropped []string `json:"dropped,omitempty"`
	// Asked is when the source was asked last, and Answered when that had an end,
	// good or not: before Asked while somebody waits for it, or died waiting.
	Asked    time.Time `json:"asked,omitzero"`
	Answered time.Time `json:"answered,omitzero"`
	// NotBefore is when it may be asked again, and Failed how often in a row it did
	// not answer well; Fault is the last reason, of the kind FaultKind.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Failed    int       `json:"failed,omitempty"`
	Fault     string    `json:"fault,omitempty"`
	FaultKind string    `json:"faultKind,omitempty"`
	// EmptySince is when the first of the good replies in a row came that showed no addresses.
	EmptySince time.Time `json:"emptySince,omitzero"`
	// Withdrawn are addresses that an attachment had when the cloud ceased to name
	// them, and since when: they are nobody else's until it names them again.
	Withdrawn map[netip.Addr]time.Time `json:"withdrawn,omitempty"`
}

// CloudSource returns what is known of a source in this boot, or an error that is
// ErrNotFound. It may be changed, but not what its fields point to: that may be
// another caller's too.
func (tx *Tx) CloudSource(name string) (*CloudSource, error) {
	return getCloudSource(tx.b, tx.memo, name)
}

// PutCloudSource stores what is known of a source.
func (tx *Tx) PutCloudSource(s *CloudSource) error { return putCloudSource(tx.b, s) }

// CloudSources returns all sources as CloudSource does, by name. Damaged records are
// left out and named in the error.
func (tx *Tx) CloudSources() ([]CloudSource, error) {
	from := bucketOf(tx.b, bucketCloud)
	if from == nil {
		return nil, nil
	}
	var all []CloudSource
	var faults []error
	c := from.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if v == nil {
			continue
		}
		s, err := tx.memo.cloudSource(k, v)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, s)
	}
	return all, errors.Join(faults...)
}

// CloudSource is the source as it was when a good reply was kept last, in whichever
// boot; without one the error is ErrNotFound.
func (tx *KeepTx) CloudSource(name string) (*CloudSource, error) {
	return getCloudSource(tx.b, nil, name)
}

// PutCloudSource keeps a source beyond the boot.
func (tx *KeepTx) PutCloudSource(s *CloudSource) error { return putCloudSource(tx.b, s) }

func getCloudSource(b *bolt.Tx, m *memo, name string) (*CloudSource, error) {
	var raw []byte
	key := encodeKey(name)
	if from := bucketOf(b, bucketCloud); from != nil {
		raw = from.Get(key)
	}
	s, err := CloudSource{}, ErrNotFound
	if raw != nil {
		s, err = m.cloudSource(key, raw)
	}
	if err != nil {
		return nil, fmt.Errorf("cloud source %.80q: %w", name, err)
	}
	return &s, nil
}

func putCloudSource(b *bolt.Tx, s *CloudSource) error {
	key, err := storableKey("cloud source", s.Name)
	if err != nil {
		return err
	}
	to, err := writable(b, bucketCloud)
	if err != nil {
		return err
	}
	return putRecord(to, key, s)
}
