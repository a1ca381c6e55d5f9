package leftovers

import (
	"testing"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
)

// TestNames checks names against digests of sha512sum(1) for network "net1" and
// the containers "c1" and "c2".
func TestNames(t *testing.T) {
	for chain, id := range map[string]string{"CNI-c2d892b58e87e28a12fe6479": "c1", "CNI-74f9b05a6a8182c73e61fd60": "c2"} {
		if got := iptablesChain(masqueradePrefix, "net1", id); got != chain {
			t.Errorf("chain of %q is %q, want %q", id, got, chain)
		}
	}
	const hostPorts = "CNI-DN-c2d892b58e87e28a12fe6"
	if got := iptablesChain(hostPortPrefix, "net1", "c1"); got != hostPorts {
		t.Errorf("chain of host ports is %q, want %q", got, hostPorts)
	}
}

// FuzzRule checks that any rule is read without a panic. The corpus has rules
// that iptables-nft and nft made.
func FuzzRule(f *testing.F) {
	f.Fuzz(func(t *testing.T, attrs []byte, family byte) {
		held, err := nft.DecodeRule(nft.Table{Family: family, Name: "nat"}, attrs)
		if err != nil {
			return
		}
		r, err := iptables.ReadRule(held)
		if err != nil {
			return
		}
		_ = forwards(r, target(r))
		_, _, _ = parseComment(r.Comment)
		held.Deletion()
	})
}
