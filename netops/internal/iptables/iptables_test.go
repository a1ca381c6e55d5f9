package iptables

import (
	"errors"
	"net/netip"
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
		_, _ = heldRule(r)
		_, _, chainErr := decodeBaseChain(unix.NFPROTO_INET, b)
		for _, err := range []error{err, chainErr} {
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
