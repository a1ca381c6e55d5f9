package store

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// DHCPLease has the DHCP leases of one attachment, so that another process, also after a reboot, can
// renew or release them.
type DHCPLease struct {
	Owner Key   `json:"owner"`
	Netns Netns `json:"netns"`
	// Link is the interface's index in the namespace. The interface may be renamed.
	Link int    `json:"link,omitempty"`
	Pod  string `json:"pod,omitempty"`
	// BootID is the boot that the namespace belonged to.
	BootID string `json:"bootID,omitempty"`
	// Socket is the path of the socket of the daemon that keeps the lease.
	Socket string `json:"socket"`
	// Identity is the text from which the client identifiers are made.
	Identity string `json:"identity"`
	// Args and Conf are CNI_ARGS and the network configuration of ADD.
	Args string          `json:"args,omitempty"`
	Conf json.RawMessage `json:"conf"`
	// Grants has one entry for each address family, in the order of the result.
	Grants  []DHCPGrant `json:"grants"`
	Created time.Time   `json:"created"`
	Updated time.Time   `json:"updated"`
}

// DHCPGrant is one address that a server leased.
type DHCPGrant struct {
	// Family is "ipv4" or "ipv6".
	Family  string       `json:"family"`
	Address netip.Prefix `json:"address"`
	// MAC is the client's hardware address.
	MAC string `json:"mac"`
	// Server identifies the server: an IPv4 address, or a DUID in hex.
	Server string `json:"server"`
	// ServerMAC is the sender of the server's messages.
	ServerMAC string    `json:"serverMAC,omitempty"`
	Start     time.Time `json:"start"`
	// Renew and Rebind are T1 and T2 (RFC 2131, section 4.4.5).
	Renew  time.Time `json:"renew"`
	Rebind time.Time `json:"rebind"`
	// Expire is zero for a lease that never ends.
	Expire time.Time `json:"expire,omitzero"`
	// Withdrawn means that the lease ended and the address was removed from the interface.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Result is the grant's part of the CNI result.
	Result json.RawMessage `json:"result"`
}

// BootID returns the id of the boot that node.db belongs to.
func (s *Store) BootID() string { return s.o.BootID }

// DHCPLease returns an attachment's lease, or an error that is ErrNotFound.
func (tx *KeepTx) DHCPLease(k Key) (*DHCPLease, error) {
	var l DHCPLease
	if err := kv.Get(tx.b, bucketDHCPLeases, k.Encode(), &l); err != nil {
		return nil, fmt.Errorf("DHCP lease of %s: %w", k.Describe(), err)
	}
	return &l, nil
}

// PutDHCPLease stores a lease, in place of an older one of the attachment.
func (tx *KeepTx) PutDHCPLease(l *DHCPLease) error {
	return kv.Store(tx.b, bucketDHCPLeases, "DHCP lease", l, l.Owner.Network, l.Owner.ContainerID, l.Owner.IfName)
}

// DeleteDHCPLease deletes a lease. A missing one is not an error.
func (tx *KeepTx) DeleteDHCPLease(k Key) error {
	return kv.Delete(tx.b, bucketDHCPLeases, k.Encode())
}

// DHCPLeases returns the leases of a network, or of all with "", in the order of
// their owners. Damaged records are skipped and named in the error.
func (tx *KeepTx) DHCPLeases(network string) ([]DHCPLease, error) {
	return kv.ListOwned(tx.b, bucketDHCPLeases, network, func(l *DHCPLease) *Key { return &l.Owner })
}
