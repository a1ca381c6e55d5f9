package egress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/internal/sorting"
)

// Status is what 'cnibox agent status' shows.
type Status struct {
	Addresses []AddressStatus `json:"addresses,omitempty"`
	// Faults are sentences.
	Faults []string `json:"faults,omitempty"`
}

// AddressStatus is an egress address.
type AddressStatus struct {
	Address    netip.Addr `json:"address"`
	Namespaces []string   `json:"namespaces"`
	// Holder is the node that has announced that it holds the address. Held is true on the node that does.
	Holder string `json:"holder,omitempty"`
	Held   bool   `json:"held"`
	// Pods is the number of addresses of this node's pods that have it.
	Pods int `json:"pods"`
	// Error is why this node, which has the label, does not hold the address if no other does.
	Error string `json:"error,omitempty"`
}

// String returns a line for a person.
func (a *AddressStatus) String() string {
	where := "no node holds it"
	switch {
	case a.Held:
		where = "this node holds it"
	case a.Holder != "":
		where = a.Holder + " holds it"
	}
	return fmt.Sprintf("egress address %s of %s: %s, %d pod addresses of this node use it", a.Address, strings.Join(a.Namespaces, ", "), where, a.Pods)
}

// Status returns the present status.
func (k *Keeper) Status() *Status {
	if k == nil {
		return nil
	}
	return k.current.Load()
}

// status computes the status. compare calls it.
func (k *Keeper) status(failed error) *Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &Status{}
	if failed != nil {
		s.Faults = append(s.Faults, failed.Error())
	}
	for _, what := range slices.Sorted(maps.Keys(k.unread)) {
		s.Faults = append(s.Faults, fmt.Sprintf("%s: %s", what, k.unread[what]))
	}
	labelled, why := k.ineligible()
	if labelled && why != nil {
		s.Faults = append(s.Faults, why.Error())
	}
	if k.last == nil {
		return s
	}
	s.Faults = append(s.Faults, k.last.faults...)
	pods := map[netip.Addr]int{}
	for _, a := range k.last.assigned {
		pods[a]++
	}
	for _, a := range sorting.Sorted(slices.Collect(maps.Keys(k.last.wanted)), netip.Addr.Compare) {
		one := AddressStatus{Address: a, Namespaces: k.last.wanted[a], Holder: k.facts.holders[a], Held: k.facts.held[a], Pods: pods[a]}
		if one.Held {
			one.Holder = k.Node
		}
		if c := k.campaigns[a]; c != nil {
			for _, err := range []error{c.fault, c.lease} {
				if err != nil {
					one.Error = strings.TrimSpace(one.Error + " " + err.Error())
				}
			}
		}
		if _, known := k.facts.Peers[one.Holder]; !known && one.Holder != k.Node && one.Pods > 0 {
			s.Faults = append(s.Faults, fmt.Sprintf("no node that this one reaches holds %s: the packets to the outside of %d addresses of pods are dropped", a, one.Pods))
		}
		if one.Error != "" {
			s.Faults = append(s.Faults, one.Error)
		}
		s.Addresses = append(s.Addresses, one)
	}
	return s
}

// WriteMetrics writes the metrics.
func (k *Keeper) WriteMetrics(w *metrics.Writer) {
	if k == nil {
		return
	}
	s := k.Status()
	if s == nil {
		s = &Status{}
	}
	held := w.Gauge("cnibox_egress_address_held", "1 if this node holds the egress address, else 0.", "address")
	pods := w.Gauge("cnibox_egress_pod_addresses", "Addresses of this node's pods that leave the cluster with the egress address.", "address")
	for i := range s.Addresses {
		a := &s.Addresses[i]
		value := 0.0
		if a.Held {
			value = 1
		}
		held.Add(value, a.Address.String())
		pods.Add(float64(a.Pods), a.Address.String())
	}
	w.Gauge("cnibox_egress_faults", "Faults of egress addresses: 'cnibox agent status' names them.").Add(float64(len(s.Faults)))
}
