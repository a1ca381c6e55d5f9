package cloud

import (
	"cmp"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// The states of a cloud address in the output of `cnibox cloud show`.
const (
	stateUsed      = "used"      // leased, and the container may exist
	stateLeaked    = "leaked"    // leased to a container that no longer exists
	stateWithdrawn = "withdrawn" // leased, but the cloud no longer lists it
	stateCooling   = "cooling"   // released, and not available until the cool-down ends
)

// Shown is the output of `cnibox cloud show`.
type Shown struct {
	Sources []ShownSource `json:"sources"`
	// Addresses are the leased addresses and those in cool-down.
	Addresses   []ShownAddress `json:"addresses"`
	Differences []Difference   `json:"differences"`
	// Kubelet is nil if the node has no kubelet configuration.
	Kubelet *ShownKubelet `json:"kubelet,omitempty"`
	now     time.Time
}

// ShownSource is the known state of one source.
type ShownSource struct {
	Name string `json:"name"`
	// Provider is the provider that replied, if several are tried.
	Provider  string     `json:"provider,omitempty"`
	Revision  uint64     `json:"revision"`
	Fetched   time.Time  `json:"fetched,omitzero"`
	Asked     time.Time  `json:"asked,omitzero"`
	NotBefore time.Time  `json:"notBefore,omitzero"`
	Failed    int        `json:"failed,omitempty"`
	Fault     string     `json:"fault,omitempty"`
	Dropped   []string   `json:"dropped,omitempty"`
	NICs      []ShownNIC `json:"nics"`
	Count
}

// ShownNIC is one interface of the node.
type ShownNIC struct {
	MAC string `json:"mac"`
	ID  string `json:"id,omitempty"`
	// Link is the host's link with this MAC, or empty.
	Link    string        `json:"link,omitempty"`
	Primary bool          `json:"primary,omitempty"`
	Subnets []ShownSubnet `json:"subnets"`
}

// ShownSubnet is the part of a subnet that a NIC has.
type ShownSubnet struct {
	Prefix  netip.Prefix   `json:"prefix"`
	Gateway netip.Addr     `json:"gateway,omitzero"`
	Own     []netip.Addr   `json:"own,omitempty"`
	Ranges  []netip.Prefix `json:"ranges,omitempty"`
	Count
}

// Count has numbers of addresses.
type Count struct {
	// Size is the number of addresses for pods. It is a string, because the size of an IPv6 range
	// can exceed a JSON number.
	Size      string `json:"size"`
	Used      int    `json:"used"`
	Cooling   int    `json:"cooling"`
	Withdrawn int    `json:"withdrawn"`
	size      *big.Int
}

// ShownAddress is an address that is not free.
type ShownAddress struct {
	Address netip.Addr `json:"address"`
	Source  string     `json:"source"`
	NIC     string     `json:"nic"`
	// Subnet is invalid if the cloud no longer lists the address.
	Subnet      netip.Prefix `json:"subnet,omitzero"`
	State       string       `json:"state"`
	Network     string       `json:"network,omitempty"`
	Pod         string       `json:"pod,omitempty"`
	ContainerID string       `json:"containerID,omitempty"`
	IfName      string       `json:"ifname,omitempty"`
	Netns       string       `json:"netns,omitempty"`
	// Since is the time of the lease or release. Withdrawn is when the cloud was first seen not to
	// list the address. Until is the end of the cool-down.
	Since     time.Time `json:"since"`
	Withdrawn time.Time `json:"withdrawn,omitzero"`
	Until     time.Time `json:"until,omitzero"`
}

// source returns one source with its NICs.
func (v *inventory) source(s *store.CloudSource) ShownSource {
	out := ShownSource{
		Name: s.Name, Provider: s.Provider, Revision: s.Revision, Fetched: s.Fetched, Asked: s.Asked, NotBefore: s.NotBefore,
		Failed: s.Failed, Fault: s.Fault, Dropped: s.Dropped, NICs: []ShownNIC{}, Count: Count{size: new(big.Int)},
	}
	for i := range s.NICs {
		n := &s.NICs[i]
		nic := ShownNIC{MAC: n.MAC, ID: n.ID, Link: v.nics[n.MAC].Name, Primary: n.Primary, Subnets: []ShownSubnet{}}
		for j := range n.Subnets {
			sub := &n.Subnets[j]
			nic.Subnets = append(nic.Subnets, ShownSubnet{
				Prefix: sub.Prefix, Gateway: sub.Gateway, Own: sub.Own, Ranges: sub.Ranges, Count: v.count(s, n.MAC, sub),
			})
			out.size.Add(out.size, nic.Subnets[j].size)
			out.Used += nic.Subnets[j].Used
			out.Cooling += nic.Subnets[j].Cooling
		}
		out.NICs = append(out.NICs, nic)
	}
	out.Size = out.size.String()
	for a := range s.Withdrawn { // a mark stays until the next request to the cloud
		if l, ok := v.leases[a]; ok && l.Source == s.Name {
			out.Withdrawn++
		}
	}
	return out
}

// count counts the addresses of a subnet with the rules of the allocation.
func (v *inventory) count(s *store.CloudSource, mac string, sub *store.CloudSubnet) Count {
	r := rangeOf(s.Name, mac, sub, ownAddresses(s, v.links))
	c := Count{size: leasing.Set{r}.Size()}
	c.Size = c.size.String()
	for a, l := range v.leases {
		switch {
		case l.Source != s.Name || l.NIC != mac:
		case sub.Gives(a):
			c.Used++
		case sub.Prefix.Contains(a):
			c.Withdrawn++
		}
	}
	for a := range v.freed {
		if _, taken := v.leases[a]; !taken && sub.Gives(a) && v.cools(a) {
			c.Cooling++
		}
	}
	return c
}

// Table shows the addresses that are not free.
func (s *Shown) Table() (head []string, rows [][]string) {
	for _, a := range s.Addresses {
		rows = append(rows, []string{
			a.Address.String(), a.NIC, a.State, cmp.Or(a.Network, "-"), cmp.Or(a.Pod, "-"), cmp.Or(a.ContainerID, "-"),
			cmp.Or(a.IfName, "-"), brief(s.now.Sub(a.Since)),
		})
	}
	return []string{"ADDRESS", "NIC", "STATE", "NETWORK", "POD", "CONTAINER", "IFNAME", "AGE"}, rows
}

// String lists the cloud's addresses by source, NIC and subnet, and the differences.
func (s *Shown) String() string {
	var lines []string
	if len(s.Sources) == 0 {
		lines = append(lines, "no cloud was queried on this node yet: run 'cnibox cloud refresh'")
	}
	for _, src := range s.Sources {
		lines = append(lines, s.source(&src)...)
	}
	if s.Kubelet != nil {
		lines = append(lines, s.Kubelet.text(s))
	}
	for _, d := range s.Differences {
		lines = append(lines, fmt.Sprintf("! %s: %s: %s", d.What, d.Is, d.Do))
	}
	return strings.Join(lines, "\n")
}

func (s *Shown) source(src *ShownSource) []string {
	state := "never answered"
	if !src.Fetched.IsZero() {
		state = fmt.Sprintf("revision %d of %s ago", src.Revision, brief(s.now.Sub(src.Fetched)))
	}
	if src.Provider != "" && !strings.HasPrefix(src.Name, src.Provider+" ") {
		state = "reply of " + src.Provider + ", " + state
	}
	lines := []string{fmt.Sprintf("%s (%s): %s", src.Name, state, src.text())}
	for _, n := range src.NICs {
		where := cmp.Or(n.Link, "no link of this host")
		if n.Primary {
			where += ", primary"
		}
		if len(n.Subnets) == 0 {
			lines = append(lines, fmt.Sprintf("  %s (%s): nothing", n.MAC, where))
		}
		for _, sub := range n.Subnets {
			lines = append(lines, fmt.Sprintf("  %s (%s) %s: %s", n.MAC, where, sub.Prefix, sub.text()))
		}
	}
	for _, d := range src.Dropped {
		lines = append(lines, "  not used: "+d)
	}
	return lines
}

func (c *Count) text() string {
	text := fmt.Sprintf("%s for pods, %d used", c.Size, c.Used)
	if c.Cooling > 0 {
		text += fmt.Sprintf(", %d cooling", c.Cooling)
	}
	if c.Withdrawn > 0 {
		text += fmt.Sprintf(", %d withdrawn and used", c.Withdrawn)
	}
	return text
}

// brief formats a duration in whole seconds.
func brief(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// singles returns a source's single addresses for pods.
func singles(s *store.CloudSource) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, n := range s.NICs {
		for _, sub := range n.Subnets {
			for _, a := range sub.Addresses {
				all[a] = true
			}
		}
	}
	return all
}

func rangeCount(s *store.CloudSource) int {
	count := 0
	for _, n := range s.NICs {
		for _, sub := range n.Subnets {
			count += len(sub.Ranges)
		}
	}
	return count
}
