package netops

import (
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
	"github.com/cnibox/cnibox/test/nftlist"
)

// TestNFTListedByOtherNFT adds an element to every set, in the forms that
// roles use, and lists the tables by several versions of nft.
func TestNFTListedByOtherNFT(t *testing.T) {
	programs := nftlist.Find(t)
	c := freshNFT(t)
	// nft 1.0 prints the bytes of a group in a concatenation in reverse order.
	text := map[nft.Field]string{
		nft.IfName: "veth1", nft.IfPattern: "cni0", nft.IfKind: "veth", nft.IfGroup: "0x65000065", nft.IP4Addr: "10.1.0.2", nft.IP6Addr: "fd00::2",
		nft.IP4Prefix: "10.1.0.0/24", nft.IP6Prefix: "fd00::/64", nft.EtherAddr: "02:00:00:00:00:01", nft.InetProto: "tcp",
		nft.InetService: "8080", nft.ServiceRange: "9000-9100", nft.PacketMark: "0x2000", nft.Verdict: "accept",
	}
	texts := func(fields []nft.Field) (out []string) {
		for _, f := range fields {
			out = append(out, text[f])
		}
		return out
	}
	for _, s := range ruleset.Schema().Sets() {
		mustAdd(t, c, &nft.Element{Set: s.Name, Key: texts(s.Key), Value: texts(s.Data), Label: "cnibox:0123456789abcdef pod"})
	}
	if err := programs.Check(); err != nil {
		t.Error(err)
	}
}
