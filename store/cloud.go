package store

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// CloudNIC is one interface of this node in a cloud's reply, in the same form for all clouds. A field
// that the reply does not have is zero.
type CloudNIC struct {
	// MAC is in the usual colon form; "*" stands for any interface.
	MAC string `json:"mac"`
	// ID is the cloud's name of the interface: "eni-0123456789abcdef0".
	ID string `json:"id,omitempty"`
	// Device is its number as the cloud counts them, from 0.
	Device  int  `json:"device"`
	Primary bool `json:"primary,omitempty"`
	MTU     int  `json:"mtu,omitempty"`
	// Subnets have different prefixes.
	Subnets []CloudSubnet `json:"subnets,omitempty"`
	// Network has the prefixes of the VNet or VPC. Traffic to them keeps its source
	// address.
	Network []netip.Prefix `json:"network,omitempty"`
	DNS     []netip.Addr   `json:"dns,omitempty"`
}

// CloudSubnet is the part of one subnet that a NIC has.
type CloudSubnet struct {
	Prefix netip.Prefix `json:"prefix"`
	// Gateway is the cloud's router.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Own are the addresses of the node itself. No pod gets one.
	Own []netip.Addr `json:"own,omitempty"`
	// Addresses are single addresses for pods, Ranges are prefixes for pods.
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	Ranges    []netip.Prefix `json:"ranges,omitempty"`
}

// Usable reports whether the NIC has an address for pods.
func (n *CloudNIC) Usable() bool {
	return slices.ContainsFunc(n.Subnets, func(s CloudSubnet) bool { return len(s.Addresses)+len(s.Ranges) > 0 })
}

// Gives reports whether an address is for pods.
func (s *CloudSubnet) Gives(a netip.Addr) bool {
	return slices.Contains(s.Addresses, a) || slices.ContainsFunc(s.Ranges, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(s.Own, a)
}

// CloudSource is the known state of one source of addresses: its last good reply, and the time of the
// next query. All processes of the node share it.
type CloudSource struct {
	// Name is the provider and its address: "azure http://168.63.129.16".
	Name string `json:"name"`
	// NICs are from the last good reply, which came at Fetched.
	NICs    []CloudNIC `json:"nics,omitempty"`
	Fetched time.Time  `json:"fetched,omitzero"`
	// Revision counts the replies that differed from the one before them.
	Revision uint64 `json:"revision"`
	// Provider is the cloud that gave the reply, if several are tried: "aws".
	Provider string `json:"provider,omitempty"`
	// Dropped has the unused parts of the reply with the reasons.
	Dropped []string `json:"dropped,omitempty"`
	// Asked is the time of the last query, and Answered the time of its end, also without a reply.
	// Answered is before Asked while a process waits for the source, or after that process died.
	Asked    time.Time `json:"asked,omitzero"`
	Answered time.Time `json:"answered,omitzero"`
	// NotBefore is the earliest time of the next query. Failed counts the failures since the last good
	// reply. Fault is the last failure, of the kind FaultKind.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Failed    int       `json:"failed,omitempty"`
	Fault     string    `json:"fault,omitempty"`
	FaultKind string    `json:"faultKind,omitempty"`
	// EmptySince is the time from which on all good replies had no addresses.
	EmptySince time.Time `json:"emptySince,omitzero"`
	// Withdrawn has the addresses that the cloud stopped listing while an attachment had them, with the
	// times. No other attachment gets one until the cloud lists it again.
	Withdrawn map[netip.Addr]time.Time `json:"withdrawn,omitempty"`
}

// CloudSource returns the known state of a source in this boot, or ErrNotFound. The caller may change
// its fields, but not the values that they point to, because other callers share these.
func (tx *Tx) CloudSource(name string) (*CloudSource, error) {
	return getCloudSource(tx.b, tx.memo, name)
}

// PutCloudSource stores the state of a source.
func (tx *Tx) PutCloudSource(s *CloudSource) error {
	return kv.Store(tx.b, bucketCloud, "cloud source", s, s.Name)
}

// CloudSources returns all sources as CloudSource does, by name. Damaged records are
// skipped and named in the error.
func (tx *Tx) CloudSources() ([]CloudSource, error) {
	var all []CloudSource
	err := kv.Each(tx.b, bucketCloud, nil, func(k, v []byte) error {
		s, err := tx.memo.cloudSource(k, v)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	return all, err
}

// CloudSource returns the source with the last good reply that was stored, also in an earlier boot, or
// ErrNotFound.
func (tx *KeepTx) CloudSource(name string) (*CloudSource, error) {
	return getCloudSource(tx.b, nil, name)
}

// PutCloudSource stores a source so that it survives a reboot.
func (tx *KeepTx) PutCloudSource(s *CloudSource) error {
	return kv.Store(tx.b, bucketCloud, "cloud source", s, s.Name)
}

func getCloudSource(b *bolt.Tx, m *memo, name string) (*CloudSource, error) {
	key := kv.EncodeKey(name)
	raw := kv.Raw(b, bucketCloud, key)
	s, err := CloudSource{}, ErrNotFound
	if raw != nil {
		s, err = m.cloudSource(key, raw)
	}
	if err != nil {
		return nil, fmt.Errorf("cloud source %.80q: %w", name, err)
	}
	return &s, nil
}
