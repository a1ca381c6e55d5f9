package rtnl

import "testing"

// TestHashPolicies: the number of each policy is that of the kernel (linux/if_bonding.h), and another name has none.
func TestHashPolicies(t *testing.T) {
	for want, name := range []string{"layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"} {
		if got, known := HashPolicyValue(name); !known || int(got) != want || hashPolicyName(got) != name {
			t.Errorf("%s: %d, %t, %q", name, got, known, hashPolicyName(got))
		}
	}
	if got, known := HashPolicyValue("layer9"); known {
		t.Errorf("another name: %d", got)
	}
}
