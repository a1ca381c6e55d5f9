package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// FuzzListing checks that any output of iptables is read without a panic, and
// that only listed rules are deleted.
func FuzzListing(f *testing.F) {
	f.Add("-P FORWARD DROP\n-N CNI-ADMIN\n-N CNI-FORWARD\n-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n" +
		"-A CNI-FORWARD -s 10.1.0.0/24 -i cni0 -m comment --comment \"cnibox from 10.1.0.0/24 cni0: cnibox:shared pods\" -j ACCEPT\n")
	forward := &Forward{Shared: true, Link: "cni0", Net: netip.MustParsePrefix("10.1.0.0/24"), Admin: "CNI-ADMIN", Label: "cnibox:shared pods"}
	f.Add("-A X -m comment --comment \"a \\\" b\" -j\n-P\n-N \n-A")
	f.Fuzz(func(t *testing.T, s string) {
		st := ParseListing(s)
		for _, op := range forward.removal(st) {
			if op.Held != nil && !strings.Contains(s, op.Held.Text) {
				t.Errorf("deletes %q", op.Held.Text)
			}
		}
	})
}

// FuzzDecodeRule checks that any rule of the kernel is read or refused with
// ErrDamaged.
func FuzzDecodeRule(f *testing.F) {
	f.Add([]byte{12, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := nft.DecodeRule(nft.Table{}, b)
		_, readErr := ReadRule(r)
		for _, err := range []error{err, readErr} {
			if err != nil && !errors.Is(err, nlconn.ErrDamaged) {
				t.Errorf("%v does not tell what is wrong", err)
			}
		}
	})
}

// FuzzPolicyDrops checks that any table of the kernel is read within its bounds
// or refused with ErrDamaged.
func FuzzPolicyDrops(f *testing.F) {
	f.Add(make([]byte, 152), uint32(0), true)
	f.Fuzz(func(t *testing.T, b []byte, offset uint32, is6 bool) {
		family := byte(unix.NFPROTO_IPV4)
		if is6 {
			family = unix.NFPROTO_IPV6
		}
		if _, err := policyDrops(family, b, offset); err != nil && !errors.Is(err, nlconn.ErrDamaged) {
			t.Errorf("%v does not tell what is wrong", err)
		}
	})
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
