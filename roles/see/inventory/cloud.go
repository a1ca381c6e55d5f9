package inventory

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// CloudPool has a cloud's addresses of one subnet in the output of `cnibox state`. `cnibox cloud
// show` has more details.
type CloudPool struct {
	Source string       `json:"source"`
	NIC    string       `json:"nic"`
	Link   string       `json:"link,omitempty"`
	Subnet netip.Prefix `json:"subnet"`
	// Gateway is the cloud's router.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Addresses is the number of addresses for pods, as "2^48" and the like from 2^63 on. Used
	// counts the used ones. Withdrawn counts the used ones that the cloud no longer lists.
	Addresses string `json:"addresses"`
	Used      int    `json:"used"`
	Withdrawn int    `json:"withdrawn"`
	// Fetched is the time of the cloud's reply.
	Fetched time.Time `json:"fetched"`
	Fault   string    `json:"fault,omitempty"`
}

// readCloud adds the clouds' addresses and the NICs.
func (s *Seen) readCloud(ctx context.Context, h *roles.Host) error {
	sources, err := store.Read(ctx, h.Store, (*store.Tx).CloudSources)
	if err != nil || len(sources) == 0 {
		return err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return fmt.Errorf("list the host's interfaces: %w", err)
	}
	s.NICs = attachment.NICs(links)
	leases := s.leases()
	for i := range sources {
		for _, nic := range sources[i].NICs {
			for j := range nic.Subnets {
				s.Cloud = append(s.Cloud, s.cloudPool(&sources[i], nic.MAC, &nic.Subnets[j], leases))
			}
		}
	}
	return nil
}

func (s *Seen) cloudPool(source *store.CloudSource, mac string, sub *store.CloudSubnet, leases []store.Lease) CloudPool {
	p := CloudPool{
		Source: source.Name, NIC: mac, Link: s.NICs[mac].Name, Subnet: sub.Prefix, Gateway: sub.Gateway,
		Addresses: countAddresses(sub), Fetched: source.Fetched, Fault: source.Fault,
	}
	for _, l := range leases {
		if l.Source == source.Name && l.NIC == mac && sub.Prefix.Contains(l.Address) {
			p.Used++
			if _, gone := source.Withdrawn[l.Address]; gone {
				p.Withdrawn++
			}
		}
	}
	return p
}

// countAddresses returns the number of a subnet's addresses for pods.
func countAddresses(sub *store.CloudSubnet) string {
	const countable = 63
	n := uint64(len(sub.Addresses))
	for _, r := range sub.Ranges {
		bits := r.Addr().BitLen() - r.Bits()
		if bits >= countable {
			return "2^" + strconv.Itoa(bits)
		}
		n += 1 << bits
	}
	return strconv.FormatUint(n, 10)
}

// Origin returns the source of a lease's address.
func (n *Inventory) Origin(l *store.Lease) string {
	switch {
	case l.Imported:
		return "imported"
	case l.Source == "":
		return "own"
	case n.NICs[l.NIC].Name != "":
		return "cloud " + n.NICs[l.NIC].Name
	}
	return "cloud " + l.NIC
}
