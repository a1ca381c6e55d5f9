package cloud

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store"
)

// Difference is a difference between the cloud, the leases, the attachments and the host's links.
type Difference struct {
	// What is the address, NIC or source.
	What string `json:"what"`
	Is   string `json:"is"`
	// Do is the recommended action.
	Do string `json:"do"`
}

// Actions. Reconcile with --fix does the first one.
const (
	doFix      = "cnibox cloud reconcile --fix releases it"
	doRecreate = "delete the pod: its replacement gets an address of the cloud"
)

// differences returns all differences, sorted by What.
func (v *inventory) differences() []Difference {
	out := []Difference{}
	add := func(what, do, is string, a ...any) {
		out = append(out, Difference{What: what, Do: do, Is: fmt.Sprintf(is, a...)})
	}
	for i := range v.sources {
		v.differencesOf(&v.sources[i], add)
	}
	for a, l := range v.leases {
		v.differencesOfLease(a, l, add)
	}
	for key, att := range v.attachments {
		v.differencesOfAttachment(key, att, add)
	}
	sorting.Func(out, func(a, b Difference) int { return cmp.Or(strings.Compare(a.What, b.What), strings.Compare(a.Is, b.Is)) })
	return out
}

type addDifference func(what, do, is string, a ...any)

// differencesOf adds the faults of a source and its differences from the host.
func (v *inventory) differencesOf(s *store.CloudSource, add addDifference) {
	switch {
	case s.Fault != "":
		add(s.Name, "see docs/cloud.md, and cnibox cloud refresh", "%d queries in succession without a valid reply: %s", s.Failed, s.Fault)
	case s.Answered.Before(s.Asked) && v.now.Sub(s.Asked) > time.Minute:
		add(s.Name, "cnibox cloud refresh", "queried %s ago, and the querying process died", brief(v.now.Sub(s.Asked)))
	}
	for _, n := range s.NICs {
		if n.MAC != anyMAC && v.nics[n.MAC].Name == "" && n.Usable() {
			add(n.MAC, "check that the interface is attached to this machine and in the host's network namespace", "the cloud lists this NIC, but no link of the host has its MAC: its addresses are not used")
		}
		for _, sub := range n.Subnets {
			for _, a := range sub.Addresses {
				if link := v.hostHas(a); link != "" {
					add(a.String(), "remove it from the link to make it available to pods", "the cloud lists it for pods, but the host's link %s has it: it is not used", link)
				}
			}
		}
	}
}

// differencesOfLease adds the differences of a lease from its owner and the cloud.
func (v *inventory) differencesOfLease(a netip.Addr, l store.Lease, add addDifference) {
	if v.isDead(l) {
		add(a.String(), doFix, "leased to %s, which does not exist", ownerOf(l.Owner, l.Pod))
		return
	}
	s := v.sourceOf(l)
	if s == nil {
		add(a.String(), "cnibox cloud refresh", "leased to %s, of the unknown source %q", ownerOf(l.Owner, l.Pod), l.Source)
		return
	}
	if since, ok := s.Withdrawn[a]; ok {
		add(a.String(), doRecreate, "%s uses it, and the cloud has not listed it since %s", ownerOf(l.Owner, l.Pod), since.UTC().Format(time.RFC3339))
		return
	}
	if nic, _, ok := locate(s, a); ok && nic.MAC != l.NIC {
		add(a.String(), doRecreate, "%s uses it with NIC %s, and the cloud now has it on %s", ownerOf(l.Owner, l.Pod), l.NIC, nic.MAC)
	}
}

// differencesOfAttachment adds the cloud's addresses that an attachment has without a lease.
func (v *inventory) differencesOfAttachment(key store.Key, att *store.Attachment, add addDifference) {
	for _, p := range att.Addresses {
		a := p.Addr()
		l, leased := v.leases[a]
		for i := range v.sources {
			if _, _, ok := locate(&v.sources[i], a); !ok || leased && l.Owner == key {
				continue
			}
			switch {
			case v.census.Dead(att):
				add(a.String(), doFix, "recorded for %s, which does not exist", ownerOf(key, att.Pod))
			case leased:
				add(a.String(), doRecreate, "%s has it, but it is leased to %s", ownerOf(key, att.Pod), ownerOf(l.Owner, l.Pod))
			default:
				add(a.String(), doRecreate, "%s has it without a lease: another pod may get it too", ownerOf(key, att.Pod))
			}
			break
		}
	}
}

// ownerOf describes an attachment for people.
func ownerOf(k store.Key, pod string) string {
	if pod != "" {
		return fmt.Sprintf("pod %.120q", pod)
	}
	return fmt.Sprintf("container %.64q interface %.16q of network %.80q", k.ContainerID, k.IfName, k.Network)
}
