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
)

// bucketDelegations is of keep.db and bucketDelegated of node.db; the keys of both
// are network, container ID, interface.
const (
	bucketDelegations = "delegations"
	bucketDelegated   = "delegated"
)

// Delegation is what a meta role asks of other plugins for one attachment. It is
// in keep.db before the first of them runs, and until the last has taken back what
// it did: plugins of others may keep something that outlives the boot.
type Delegation struct {
	Owner Key    `json:"owner"`
	Pod   string `json:"pod,omitempty"`
	Netns Netns  `json:"netns"`
	// BootID tells in which boot the namespace was.
	BootID string `json:"bootID,omitempty"`
	// Args is CNI_ARGS and Path CNI_PATH, as they were.
	Args string   `json:"args,omitempty"`
	Path []string `json:"path,omitempty"`
	// Delegates are in the order of ADD; the first one's result is the answer.
	Delegates []Delegate `json:"delegates"`
	// Conf is the meta role's own configuration.
	Conf    json.RawMessage `json:"conf,omitempty"`
	Created time.Time       `json:"created"`
	Updated time.Time       `json:"updated"`
	Program string          `json:"program,omitempty"`
}

// Delegate is one network of a Delegation.
type Delegate struct {
	// IfName is the interface in the container; no two are the same.
	IfName string `json:"ifname"`
	// Name is what the network is called by who asked for it.
	Name string `json:"name"`
	// List is its configuration as it was found, and Version what a list without
	// one is run with.
	List    json.RawMessage `json:"list"`
	Version string          `json:"version"`
	// Runtime are values by capability, Args members of args.cni, Device the
	// device of a device plugin.
	Runtime map[string]json.RawMessage `json:"runtime,omitempty"`
	Args    json.RawMessage            `json:"args,omitempty"`
	Device  string                     `json:"device,omitempty"`
	// Resource is the device plugin's.
	Resource string `json:"resource,omitempty"`
	// NoIPAM: it asks for no addresses, whatever the list says.
	NoIPAM bool `json:"noIPAM,omitempty"`
	// Gateways take the place of the container's default routes. Routes are for
	// what this interface's addresses send.
	Gateways []netip.Addr  `json:"gateways,omitempty"`
	Routes   []PolicyRoute `json:"routes,omitempty"`
	// HostLink is a shared interface of the host that the network stands on.
	HostLink string `json:"hostLink,omitempty"`
}

// PolicyRoute is a route for what one interface's addresses send.
type PolicyRoute struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

// Delegated is what came of a Delegation. It is in node.db: after a boot nothing
// of it is true any more.
type Delegated struct {
	Owner Key   `json:"owner"`
	State State `json:"state"`
	// Done has what each delegate answered, in the order of ADD.
	Done []Answer `json:"done,omitempty"`
	// Changes are netops changes with their inverses, in the container.
	Changes json.RawMessage `json:"changes,omitempty"`
	// Status is the pod's network-status (Kubernetes Network Custom Resource
	// Definition De-facto Standard 1.3, section 5).
	Status  json.RawMessage `json:"status,omitempty"`
	Updated time.Time       `json:"updated"`
}

// Answer is one delegate's.
type Answer struct {
	IfName string `json:"ifname"`
	// Result is a CNI result of version 1.1.0; none is known where ADD was not
	// seen to end.
	Result json.RawMessage `json:"result,omitempty"`
	// Gone: its DEL succeeded.
	Gone bool `json:"gone,omitempty"`
}

// Delegation returns an attachment's record, or an error that is ErrNotFound.
func (tx *KeepTx) Delegation(k Key) (*Delegation, error) {
	var d Delegation
	if err := get(tx.b, bucketDelegations, k.encode(), &d); err != nil {
		return nil, fmt.Errorf("delegation of %s: %w", k.describe(), err)
	}
	d.Owner = k
	return &d, nil
}

// PutDelegation stores a record, in place of an older one of the attachment.
func (tx *KeepTx) PutDelegation(d *Delegation) error {
	key, err := d.Owner.storable("delegation")
	if err != nil {
		return err
	}
	to, err := writable(tx.b, bucketDelegations)
	if err != nil {
		return err
	}
	return putRecord(to, key, d)
}

// DeleteDelegation deletes a record; none is fine.
func (tx *KeepTx) DeleteDelegation(k Key) error {
	return remove(tx.b, bucketDelegations, k.encode())
}

// Delegations returns the records of a network, or of all with "", in order of
// their owners. Damaged ones are left out and named in the error.
func (tx *KeepTx) Delegations(network string) ([]Delegation, error) {
	var prefix []byte
	if network != "" {
		prefix = encodeKey(network)
	}
	var all []Delegation
	err := scan(tx.b, bucketDelegations, prefix, func(key []byte, d Delegation) error {
		k, err := decodeAttachmentKey(key)
		if err != nil {
			return err
		}
		d.Owner = k
		all = append(all, d)
		return nil
	})
	return all, err
}

// Delegated returns what came of an attachment's delegation, or an error that is
// ErrNotFound.
func (tx *Tx) Delegated(k Key) (*Delegated, error) {
	var d Delegated
	if err := get(tx.b, bucketDelegated, k.encode(), &d); err != nil {
		return nil, fmt.Errorf("outcome of %s: %w", k.describe(), err)
	}
	d.Owner = k
	return &d, nil
}

// PutDelegated stores it, in place of an older one of the attachment.
func (tx *Tx) PutDelegated(d *Delegated) error {
	key, err := d.Owner.storable("outcome")
	if err != nil {
		return err
	}
	to, err := writable(tx.b, bucketDelegated)
	if err != nil {
		return err
	}
	return putRecord(to, key, d)
}

// DeleteDelegated deletes it; none is fine.
func (tx *Tx) DeleteDelegated(k Key) error {
	return remove(tx.b, bucketDelegated, k.encode())
}

// AllDelegated returns what came of every delegation, in order of their owners.
// Damaged records are left out and named in the error.
func (tx *Tx) AllDelegated() ([]Delegated, error) {
	var all []Delegated
	err := scan(tx.b, bucketDelegated, nil, func(key []byte, d Delegated) error {
		k, err := decodeAttachmentKey(key)
		if err != nil {
			return err
		}
		d.Owner = k
		all = append(all, d)
		return nil
	})
	return all, err
}

// statusDir holds, below the boot's directory, a file with the network-status of each
// container.
const statusDir = "network-status"

// StatusFile is where WriteStatus leaves an attachment's.
func (s *Store) StatusFile(k Key) string {
	return filepath.Join(s.o.RunDir, s.o.BootID, statusDir, k.ContainerID+"-"+k.IfName+".json")
}

// WriteStatus leaves a container's network-status for others to read.
func (s *Store) WriteStatus(k Key, status json.RawMessage) error {
	path := s.StatusFile(k)
	dir, err := openDir(filepath.Dir(path), 3, true)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	return smallfile.Replace(path, append(slices.Clip(status), '\n'), 0o600)
}

// RemoveStatus removes it; none is fine.
func (s *Store) RemoveStatus(k Key) error {
	if err := os.Remove(s.StatusFile(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network-status: %w", err)
	}
	return nil
}
