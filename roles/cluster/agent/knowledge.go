package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// knowledge is what the agent has read and what it has chosen before. The loop writes it. The methods of knowledge
// decide what this node publishes and programs. They read no file, registry or kernel, and write nothing but the
// addresses that peers.gateways computes once.
type knowledge struct {
	set  *settings
	self identity

	// snapshot and config are the last valid ones. registryErr is set while the registry cannot be read, and
	// configErr while its configuration is not valid.
	snapshot    *cluster.Snapshot
	registryErr error
	config      *cluster.Config
	configErr   error
	// overrides are the ones that an operator set for this node in the registry.
	overrides cluster.Overrides
	// fromMemory is true while snapshot is the state that a former agent saved.
	fromMemory bool

	// own is the record of this node as it was published. acquireErr is the fault of the last attempt.
	own        *cluster.Node
	acquireErr error

	// links are the last that could be read. linkErr is the fault of the last attempt.
	links   []netops.HostLink
	linkErr error

	// underlay is the last valid one, and peers are those of the snapshot.
	underlay underlay
	peers    *peers

	// macs are the MAC addresses of the VTEPs by the name of the device. key is this node's private key of
	// WireGuard. It is zero before the first use of this backend.
	macs map[string]string
	key  overlay.Secret
	// devices are the devices of IPv4 and IPv6.
	devices [2]device
}

// identity is what decides which records of the registry are this node's. See registryClient.
type identity struct {
	node      string
	anonymous bool
	owner     *cluster.Owner
}

func (c *registryClient) identity() identity { return identity{c.node, c.anonymous, c.owner} }

// device is what was learned when a family was programmed last.
type device struct {
	// key is the private key of WireGuard that the device was given last. It is zero before the first.
	key overlay.Secret
	// links are the indexes of the interfaces that tunnelled packets leave through.
	links []int
}

// device returns the device of one family.
func (k *knowledge) device(v6 bool) *device {
	if v6 {
		return &k.devices[1]
	}
	return &k.devices[0]
}

// enabled reports whether the configuration has a family.
func (k *knowledge) enabled(v6 bool) bool {
	if k.config == nil {
		return false
	}
	_, enabled := k.config.Family(v6)
	return enabled
}

// inputFault returns why nothing can be decided yet.
func (k *knowledge) inputFault() error {
	switch {
	case k.snapshot == nil && k.registryErr != nil:
		return fmt.Errorf("the registry has not answered yet: %w", k.registryErr)
	case k.snapshot == nil:
		return errors.New("the registry has not answered yet")
	case k.config == nil:
		return k.configErr
	}
	return k.linkErr
}

// carrierFault returns a fault if the interface to the other nodes cannot send.
func (k *knowledge) carrierFault(link string) error {
	if slices.ContainsFunc(k.links, func(l netops.HostLink) bool { return l.Name == link && !l.OperUp }) {
		return fmt.Errorf("interface %q is down or has no carrier", link)
	}
	return nil
}
