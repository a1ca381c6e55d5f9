package rtnl

import (
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Bond holds the attributes that only a bond has. Its mode is Link.Mode. nil and "" leave a setting to the kernel.
type Bond struct {
	// MIIMon is the interval in milliseconds at which the bond looks whether its links have a carrier. For 0 it never looks.
	MIIMon uint32 `json:"miimon"`
	// FailOverMAC is what happens to the MACs in the mode active-backup: 0 gives all links the bond's, 1 gives the bond that of its
	// active link, 2 gives the bond's to the link that becomes active.
	FailOverMAC uint8 `json:"failOverMAC,omitempty"`
	// AllSlavesActive delivers also the duplicates that inactive links receive.
	AllSlavesActive *bool `json:"allSlavesActive,omitempty"`
	// TLBDynamicLB moves flows between links by load. Only the modes balance-tlb and balance-alb have it.
	TLBDynamicLB *bool `json:"tlbDynamicLB,omitempty"`
	// XmitHashPolicy is what chooses a packet's link, by its name in ip-link(8).
	XmitHashPolicy string `json:"xmitHashPolicy,omitempty"`
	policy         uint8
}

func (b *Bond) attrs() []nlconn.Attr {
	return []nlconn.Attr{
		{Kind: nl.IFLA_BOND_MIIMON, At: &b.MIIMon, Zero: true},
		{Kind: nl.IFLA_BOND_FAIL_OVER_MAC, At: &b.FailOverMAC},
		{Kind: nl.IFLA_BOND_ALL_SLAVES_ACTIVE, At: &b.AllSlavesActive},
		{Kind: nl.IFLA_BOND_TLB_DYNAMIC_LB, At: &b.TLBDynamicLB},
		{Kind: nl.IFLA_BOND_XMIT_HASH_POLICY, At: &b.policy, Zero: b.XmitHashPolicy != ""},
	}
}

// hashPolicies are the policies by their numbers in the kernel (BOND_XMIT_POLICY_* of linux/if_bonding.h). The last needs Linux 5.12.
func hashPolicies() []string {
	return []string{"layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"}
}

// HashPolicyValue returns the kernel's number of a policy.
func HashPolicyValue(name string) (uint8, bool) {
	i := slices.Index(hashPolicies(), name)
	return uint8(max(i, 0)), i >= 0
}

func hashPolicyName(value uint8) string {
	if all := hashPolicies(); int(value) < len(all) {
		return all[value]
	}
	return strconv.Itoa(int(value))
}
