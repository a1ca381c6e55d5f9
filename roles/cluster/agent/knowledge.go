package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// knowledge is what the agent has read, and what it has decided before. The loop writes it. From it alone decide says what this node
// publishes and programs.
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

	// savedMACs are the MAC addresses of VTEPs, by device, that keep.db had when one was needed. key is this node's private key of
	// WireGuard, which is zero before the first use of this backend. keyErr is why it could not be read.
	savedMACs map[string]string
	key       overlay.Secret
	keyErr    error
	// devices are the devices of IPv4 and IPv6.
	devices [2]device

	choices
}

// choices are what a decision must not choose anew each time. Each decision has those for the next one.
type choices struct {
	// underlay is the last valid one.
	underlay underlay
	// macs are the MAC addresses of the VTEPs by device. The map does not change. spareMACs are for a VTEP of each family that needs a
	// random one. macChecked is the last snapshot that was searched for nodes with the same address.
	macs       map[string]string
	spareMACs  [2]string
	macChecked *cluster.Snapshot
	// peers were chosen from peersFrom. known is the memory of choosePeers.
	peers     *peers
	peersFrom peersFrom
	known     *verdicts
	// requested is the last record whose publication was requested. checked is the last snapshot that was compared with own: each
	// snapshot leads to one new request at most.
	requested *publishRequest
	checked   *cluster.Snapshot
}

// peersFrom is what peers are chosen from.
type peersFrom struct {
	snapshot *cluster.Snapshot
	config   *cluster.Config
	own      *cluster.Node
}

// identity is what decides which records of the registry are this node's, and what they can ask for. See registryClient.
type identity struct {
	node      string
	anonymous bool
	owner     *cluster.Owner
	// assigned is true if the registry chooses the pod networks.
	assigned bool
}

func (c *registryClient) identity() identity {
	return identity{c.node, c.anonymous, c.owner, c.assignsCIDRs}
}

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
	case k.linkErr != nil:
		return k.linkErr
	}
	return k.keyFault()
}

// keyFault returns why the private key of WireGuard is missing, if it is needed.
func (k *knowledge) keyFault() error {
	if k.config.Backend.Type != backendWireGuard || k.key != (overlay.Secret{}) {
		return nil
	}
	return cmp.Or(k.keyErr, errors.New("this node has no WireGuard key"))
}

// carrierFault returns a fault if the interface to the other nodes cannot send.
func (k *knowledge) carrierFault(link string) error {
	if slices.ContainsFunc(k.links, func(l netops.HostLink) bool { return l.Name == link && !l.OperUp }) {
		return fmt.Errorf("interface %q is down or has no carrier", link)
	}
	return nil
}
