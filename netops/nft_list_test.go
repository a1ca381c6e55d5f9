package netops

import (
	"errors"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
	"github.com/cnibox/cnibox/test/nftlist"
)

// TestNFTListedByOtherNFT adds an element to every set, in the forms that
// roles use, and lists the tables by several versions of nft. Each version loads
// what it listed, as from /etc/nftables.conf when the node starts.
func TestNFTListedByOtherNFT(t *testing.T) {
	programs := nftlist.Find(t)
	c := freshNFT(t)
	for _, s := range ruleset.Schema().Sets() {
		mustAdd(t, c, anElement(s))
	}
	if err := programs.Check(); err != nil {
		t.Error(err)
	}
	for _, f := range ruleset.Schema() {
		// No version of nft loads macNATFeature's rules: nft has no text for a MAC of a map in an option of
		// neighbour discovery.
		if f.Sets[0].Name == "macnat_uplinks" {
			continue
		}
		c := freshNFT(t)
		for _, s := range f.Sets {
			mustAdd(t, c, anElement(s))
		}
		isWhole := func() error {
			flushed, err := c.Flushed(t.Context(), f.Sets[0].Name)
			if err == nil && flushed[f.Sets[0].Name] {
				err = errors.New("the rules are not those of this version")
			}
			return err
		}
		if err := programs.Reload(isWhole); err != nil {
			t.Error(err)
		}
	}
}

// anElement returns an element of s in the form that roles use. nft 1.0 prints the bytes of a group in a concatenation in
// reverse order.
func anElement(s *nft.Set) *nft.Element {
	text := map[nft.Field]string{
		nft.IfName: "veth1", nft.IfPattern: "cni0", nft.IfKind: "veth", nft.IfGroup: "0x65000065", nft.IP4Addr: "10.1.0.2", nft.IP6Addr: "fd00::2",
		nft.IP4Prefix: "10.1.0.0/24", nft.IP6Prefix: "fd00::/64", nft.EtherAddr: "02:00:00:00:00:01", nft.InetProto: "tcp",
		nft.InetService: "8080", nft.ServiceRange: "9000-9100", nft.PacketMark: "0x2000", nft.Verdict: "accept",
	}
	e := &nft.Element{Set: s.Name, Label: "cnibox:0123456789abcdef pod"}
	for _, f := range s.Key {
		e.Key = append(e.Key, text[f])
	}
	for _, f := range s.Data {
		e.Value = append(e.Value, text[f])
	}
	return e
}
