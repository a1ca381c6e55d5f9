package dropmon

import (
	"slices"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

func TestReaders(t *testing.T) {
	list := []byte("sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n" +
		"0000000000000000 0   812        00000001 0        0        0     2        0        13226\n" +
		"0000000000000000 16  4711       00000003 0        0        0     2        0        13227\n" +
		"0000000000000000 16  4712       00000002 0        0        0     2        0        13228\n" +
		"0000000000000000 16\n")
	if got := readers(list); !slices.Equal(got, []string{"4711"}) {
		t.Errorf("readers %q, want 4711", got)
	}
}

func FuzzDecode(f *testing.F) {
	var b nlconn.Body
	b.Text(attrSymbol, "nf_hook_slow+0xc8")
	b.Bytes(attrPayload, make([]byte, 60))
	f.Add([]byte(b))
	if d, err := decode(b); err != nil || d.Size != 60 || d.Symbol != "nf_hook_slow+0xc8" {
		f.Errorf("decoded %+v, %v", d, err)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decode(b) })
}
