package refplugins

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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

// TestMatchedPorts checks the ports of iptables matches, also of truncated
// structures.
func TestMatchedPorts(t *testing.T) {
	multiport := make([]byte, 48)
	copy(multiport, []byte{1, 3, 80, 0, 90, 0, 95, 0})
	multiport[33] = 1 // the second begins a range
	source := slices.Clone(multiport)
	source[0] = 0
	inverted := slices.Clone(multiport)
	inverted[47] = 1
	many := slices.Clone(multiport)
	many[1] = 255
	for _, v := range []struct {
		name string
		info []byte
		want string
	}{
		{"tcp", []byte{0, 0, 255, 255, 80, 0, 81, 0, 0, 0, 0, 0}, "[{80 81}]"},
		{"sctp", []byte{80, 0, 80, 0, 0, 0, 255, 255}, "[{80 80}]"},
		{"udp", []byte{0, 0, 255, 255, 80}, "[]"},
		{"multiport", multiport, "[{80 80} {90 95}]"},
		{"multiport", multiport[:47], "[]"},
		{"multiport", source, "[]"},
		{"multiport", inverted, "[]"},
		{"addrtype", multiport, "[]"},
	} {
		if have := fmt.Sprint(matchedPorts(v.name, v.info)); have != v.want {
			t.Errorf("%s %v: %s, want %s", v.name, v.info, have, v.want)
		}
	}
	if have := matchedPorts("multiport", many); len(have) != 14 {
		t.Errorf("of 15 ports with one range %v", have)
	}
}

// TestDestination checks the target of each structure of iptables' DNAT, also truncated.
func TestDestination(t *testing.T) {
	info := func(size, address, port int, a string) []byte {
		b := make([]byte, size)
		copy(b[address:], netip.MustParseAddr(a).AsSlice())
		b[port], b[port+1] = 31, 144
		return b
	}
	for _, v := range []struct {
		family byte
		info   []byte
		want   string
	}{
		{unix.NFPROTO_IPV4, info(20, 8, 16, "10.0.0.1"), "10.0.0.1:8080"},
		{unix.NFPROTO_IPV4, info(44, 4, 36, "10.0.0.1"), "10.0.0.1:8080"},
		{unix.NFPROTO_IPV6, info(40, 4, 36, "fd00::1"), "[fd00::1]:8080"},
		{unix.NFPROTO_IPV6, make([]byte, 37), "invalid AddrPort"},
		{unix.NFPROTO_IPV4, make([]byte, 17), "invalid AddrPort"},
		{unix.NFPROTO_IPV4, nil, "invalid AddrPort"},
	} {
		if have := destination(v.info, v.family).String(); have != v.want {
			t.Errorf("family %d, %d bytes: %s, want %s", v.family, len(v.info), have, v.want)
		}
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
		r, err := interpret(held)
		if err != nil {
			return
		}
		_ = r.forwards(r.target())
		_, _, _ = parseComment(r.Comment)
		r.Deletion()
	})
}
