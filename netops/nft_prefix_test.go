package netops

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// TestDeleteManyPrefixes deletes prefixes beside, around and within the
// remaining ones in one call. It checks that no other prefix is deleted.
func TestDeleteManyPrefixes(t *testing.T) {
	c := freshNFT(t)
	keys := func(els []*nft.Element) (out []string) {
		for _, e := range els {
			out = append(out, e.Key[0]+" "+e.Key[1])
		}
		return out
	}
	// The kernel accepts a wider prefix if its first and last addresses
	// differ from those of the narrower one.
	var gone, stay []*nft.Element
	for i := range 20 {
		inner, outer, alone := fmt.Sprintf("10.%d.5.0/24", i), fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("11.%d.0.0/16", i)
		mustAdd(t, c, masq("", "br0", inner))
		mustAdd(t, c, masq("", "br0", outer), masq("", "br0", alone), masq("", "br1", alone))
		gone = append(gone, masq("", "br0", []string{inner, outer}[i%2]), masq("", "br0", alone))
		stay = append(stay, masq("", "br0", []string{outer, inner}[i%2]), masq("", "br1", alone))
	}
	absent := masq("", "br2", "10.0.0.0/8")
	if err := c.Del(t.Context(), append(gone, absent)); err != nil {
		t.Fatal(err)
	}
	have, err := c.List(t.Context(), "masq4")
	if err != nil {
		t.Fatal(err)
	}
	sorted := cmp.Transformer("set", func(in []string) map[string]bool {
		out := map[string]bool{}
		for _, s := range in {
			out[s] = true
		}
		return out
	})
	if diff := cmp.Diff(keys(stay), keys(have), sorted); diff != "" || len(have) != len(stay) {
		t.Errorf("%d elements stay, want %d (-want +have):\n%s", len(have), len(stay), diff)
	}
}

// TestDeleteThousandsOfPrefixes would exceed the test's time if each deletion
// listed the set and made the kernel copy it.
func TestDeleteThousandsOfPrefixes(t *testing.T) {
	c := freshNFT(t)
	n := 10_000
	if os.Getenv("CNIBOX_TEST_VM") != "" {
		n = 500 // the VM is emulated and slow
	}
	var all []*nft.Element
	for i := range n {
		all = append(all, masq("cnibox:shared net", "br0", fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)))
	}
	mustAdd(t, c, all...)
	if err := c.Del(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if have, err := c.List(t.Context(), "masq4"); err != nil || len(have) > 0 {
		t.Errorf("%d elements are left, %v", len(have), err)
	}
}
