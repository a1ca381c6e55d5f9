package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// Delegation has the calls that a meta role delegates for one attachment. It is in keep.db from before
// the first plugin's ADD until after the last plugin's DEL, because a third-party plugin may keep state
// that survives a reboot.
type Delegation struct {
	Owner Key    `json:"owner"`
	Pod   string `json:"pod,omitempty"`
	Netns Netns  `json:"netns"`
	// BootID is the boot that the namespace belonged to.
	BootID string `json:"bootID,omitempty"`
	// Args is CNI_ARGS and Path is CNI_PATH of the ADD.
	Args string   `json:"args,omitempty"`
	Path []string `json:"path,omitempty"`
	// Delegates are in the order of ADD. The result of the first is the meta role's result.
	Delegates []Delegate `json:"delegates"`
	// Conf is the meta role's own configuration.
	Conf    json.RawMessage `json:"conf,omitempty"`
	Created time.Time       `json:"created"`
	Updated time.Time       `json:"updated"`
	Program string          `json:"program,omitempty"`
}

// Delegate is one network of a Delegation.
type Delegate struct {
	// IfName is the interface in the container, unique in the Delegation.
	IfName string `json:"ifname"`
	// Name is the network's name in the request for it.
	Name string `json:"name"`
	// List is the network's unchanged configuration. Version is the CNI version to use if the list has
	// none.
	List    json.RawMessage `json:"list"`
	Version string          `json:"version"`
	// Runtime has values by capability. Args has members of args.cni. Device is the
	// device that a device plugin allocated.
	Runtime map[string]json.RawMessage `json:"runtime,omitempty"`
	Args    json.RawMessage            `json:"args,omitempty"`
	Device  string                     `json:"device,omitempty"`
	// Resource is the name of the device plugin's resource.
	Resource string `json:"resource,omitempty"`
	// NoIPAM means that the interface gets no addresses, despite ipam in the list.
	NoIPAM bool `json:"noIPAM,omitempty"`
	// Gateways replace the container's default routes. Routes apply to packets from
	// this interface's addresses.
	Gateways []netip.Addr  `json:"gateways,omitempty"`
	Routes   []PolicyRoute `json:"routes,omitempty"`
	// HostLink is the shared host interface that the network uses.
	HostLink string `json:"hostLink,omitempty"`
}

// PolicyRoute is a route for packets from one interface's addresses.
type PolicyRoute struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

// Delegated is the outcome of a Delegation. It is in node.db because it is not valid after a reboot.
type Delegated struct {
	Owner Key   `json:"owner"`
	State State `json:"state"`
	// Done has the answer of each delegate, in the order of ADD.
	Done []Answer `json:"done,omitempty"`
	// Changes are netops changes with their inverses, in the container.
	Changes json.RawMessage `json:"changes,omitempty"`
	// Status is the pod's network-status (Kubernetes Network Custom Resource
	// Definition De-facto Standard 1.3, section 5).
	Status  json.RawMessage `json:"status,omitempty"`
	Updated time.Time       `json:"updated"`
}

// Answer is the outcome of one delegate.
type Answer struct {
	IfName string `json:"ifname"`
	// Result is a CNI result of version 1.1.0. It is empty if ADD may not have ended.
	Result json.RawMessage `json:"result,omitempty"`
	// Gone is true after its DEL succeeded.
	Gone bool `json:"gone,omitempty"`
}

// Delegation returns an attachment's record, or an error that is ErrNotFound.
func (tx *KeepTx) Delegation(k Key) (*Delegation, error) {
	var d Delegation
	if err := kv.Get(tx.b, bucketDelegations, k.Encode(), &d); err != nil {
		return nil, fmt.Errorf("delegation of %s: %w", k.Describe(), err)
	}
	d.Owner = k
	return &d, nil
}

// PutDelegation stores a record, in place of an older one of the attachment.
func (tx *KeepTx) PutDelegation(d *Delegation) error {
	return kv.Store(tx.b, bucketDelegations, "delegation", d, d.Owner.Network, d.Owner.ContainerID, d.Owner.IfName)
}

// DeleteDelegation deletes a record. A missing one is not an error.
func (tx *KeepTx) DeleteDelegation(k Key) error {
	return kv.Delete(tx.b, bucketDelegations, k.Encode())
}

// Delegations returns the records of a network, or of all with "", in the order of
// their owners. Damaged records are skipped and named in the error.
func (tx *KeepTx) Delegations(network string) ([]Delegation, error) {
	return kv.ListOwned(tx.b, bucketDelegations, network, func(d *Delegation) *Key { return &d.Owner })
}

// Delegated returns the outcome of an attachment's delegation, or an error that is
// ErrNotFound.
func (tx *Tx) Delegated(k Key) (*Delegated, error) {
	var d Delegated
	if err := kv.Get(tx.b, bucketDelegated, k.Encode(), &d); err != nil {
		return nil, fmt.Errorf("outcome of %s: %w", k.Describe(), err)
	}
	d.Owner = k
	return &d, nil
}

// PutDelegated stores an outcome, in place of an older one of the attachment.
func (tx *Tx) PutDelegated(d *Delegated) error {
	return kv.Store(tx.b, bucketDelegated, "outcome", d, d.Owner.Network, d.Owner.ContainerID, d.Owner.IfName)
}

// DeleteDelegated deletes an outcome. A missing one is not an error.
func (tx *Tx) DeleteDelegated(k Key) error {
	return kv.Delete(tx.b, bucketDelegated, k.Encode())
}

// AllDelegated returns the outcomes of all delegations, in the order of their
// owners. Damaged records are skipped and named in the error.
func (tx *Tx) AllDelegated() ([]Delegated, error) {
	return kv.ListOwned(tx.b, bucketDelegated, "", func(d *Delegated) *Key { return &d.Owner })
}

// DelegatedNetwork is the configuration of a network to which a meta role delegated. It is in node.db
// until a GC with an empty list, which removes the network's shared objects after the last Delegation
// that has the configuration is deleted.
type DelegatedNetwork struct {
	// Owner is the meta role's network, and Network is the name in List.
	Owner   string `json:"owner"`
	Network string `json:"network"`
	// List, Version and HostLink are those of the latest Delegate.
	List     json.RawMessage `json:"list"`
	Version  string          `json:"version"`
	HostLink string          `json:"hostLink,omitempty"`
}

// PutDelegatedNetwork stores a configuration, in place of an older one of the network.
func (tx *Tx) PutDelegatedNetwork(n *DelegatedNetwork) error {
	return kv.Store(tx.b, bucketNetworksOf, "delegated network", n, n.Owner, n.Network)
}

// DeleteDelegatedNetwork deletes a configuration. A missing one is not an error.
func (tx *Tx) DeleteDelegatedNetwork(owner, network string) error {
	return kv.Delete(tx.b, bucketNetworksOf, kv.EncodeKey(owner, network))
}

// DelegatedNetworks returns the configurations of a meta role's network, or of all with "".
// Damaged records are skipped and named in the error.
func (tx *Tx) DelegatedNetworks(owner string) ([]DelegatedNetwork, error) {
	return kv.List[DelegatedNetwork](tx.b, bucketNetworksOf, kv.NetworkPrefix(owner))
}

// statusDir is the directory, below the boot's, with the network-status files of the
// containers.
const statusDir = "network-status"

// StatusFile returns the path that WriteStatus writes for an attachment.
func (s *Store) StatusFile(k Key) string {
	return filepath.Join(s.o.RunDir, s.o.BootID, statusDir, k.ContainerID+"-"+k.IfName+".json")
}

// WriteStatus writes a container's network-status for other programs to read.
func (s *Store) WriteStatus(k Key, status json.RawMessage) error {
	path := s.StatusFile(k)
	dir, err := boltfile.OpenDir(filepath.Dir(path), 3, true)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	return smallfile.Replace(path, append(slices.Clip(status), '\n'), 0o600)
}

// RemoveStatus removes the file of WriteStatus. A missing file is not an error.
func (s *Store) RemoveStatus(k Key) error {
	if err := os.Remove(s.StatusFile(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network-status: %w", err)
	}
	return nil
}
