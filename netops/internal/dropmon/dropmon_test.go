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
	b.Nest(attrInPort, func() { b.Uint32(inPortIndex, 3) })
	b.Bytes(attrPayload, make([]byte, 60))
	f.Add([]byte(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decode(b)
		if err == nil && d.Size < len(d.Packet) {
			t.Errorf("%d bytes of a packet of %d", len(d.Packet), d.Size)
		}
	})
}
