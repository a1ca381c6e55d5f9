package agent

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops/overlay"
)

// decision is what this node publishes and programs.
type decision struct {
	// choices are those for the next decision.
	choices
	// faults keep new pods from being attached.
	faults []error
	// macs are new MAC addresses of this node's VTEPs.
	macs []macChoice
	// publish is the record that the registry shall have, or nil if nothing is to be written. altered means that the registry has
	// another record of this node than it published.
	publish *publishRequest
	altered bool

	// programs is false if the kernel shall stay as it is. Then what follows is empty.
	programs bool
	families [2]familyDecision
	former   []formerAddress
	// formerErr has the addresses of other programs that are in other nodes' pod networks.
	formerErr error
}

// familyDecision is what the kernel shall have of one family.
type familyDecision struct {
	// on is false if the configuration lacks the family. Then all its objects are to be removed.
	on   bool
	spec overlay.Spec
	// mtu is that of pods.
	mtu int
	// nat is nil if this node has no pod network of the family.
	nat *overlay.NAT
	// err is why spec cannot be programmed. nat is valid then too.
	err error
}

// decide says what this node publishes and programs. It reads and writes nothing, except that it asks routeLink for the interface of
// the route to an address, and that the next call overwrites the peers of this one.
func (k *knowledge) decide(routeLink func(netip.Addr) (string, error)) (d decision) {
	next := *k
	k = &next
	d.faults = k.chooseLink(routeLink)
	for _, v6 := range []bool{false, true} {
		d.macs = append(d.macs, k.chooseMAC(v6)...)
	}
	if len(d.faults) == 0 {
		if !k.fromMemory {
			d.macs = append(d.macs, k.resolveMACConflict()...)
			d.publish, d.altered = k.publication()
		}
		d.faults = k.ownFaults()
	}
	d.programs = k.own != nil && k.underlay.link != ""
	if d.programs {
		k.choosePeers()
		for i, v6 := range []bool{false, true} {
			d.families[i] = k.decideFamily(v6)
		}
		d.former, d.formerErr = k.formerAddresses(d.families[0].spec.Device, d.families[1].spec.Device)
	}
	d.choices = k.choices
	return d
}

// chooseLink checks what was read and selects the underlay. A fault keeps new pods from being attached. Existing connections
// continue.
func (k *knowledge) chooseLink(routeLink func(netip.Addr) (string, error)) (faults []error) {
	if err := k.inputFault(); err != nil {
		return []error{err}
	}
	u, err := k.chooseUnderlay(k.config, routeLink)
	if err != nil {
		return []error{err} // the last underlay stays in force
	}
	k.underlay = u
	if err := k.carrierFault(u.link); err != nil {
		return []error{err}
	}
	return nil
}

// choosePeers chooses the peers, unless they were chosen from the same records.
func (k *knowledge) choosePeers() {
	if from := (peersFrom{k.snapshot, k.config, k.own}); k.peers == nil || k.peersFrom != from {
		k.peers, k.peersFrom = choosePeers(k.snapshot, k.config, k.own, k.known), from
	}
}

// decideFamily decides one family.
func (k *knowledge) decideFamily(v6 bool) (f familyDecision) {
	if !k.enabled(v6) {
		return f
	}
	f.on = true
	f.spec, f.mtu, f.err = k.spec(v6)
	f.nat = k.nat(v6, f.spec.Device)
	return f
}
