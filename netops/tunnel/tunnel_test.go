package tunnel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// TestParseWireGuard reads the kernel's description of a device with a peer of each family, and one that has
// not sent yet.
func TestParseWireGuard(t *testing.T) {
	four := append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), 0xca, 0x6c, 192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0)
	six := append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), 0xca, 0x6d, 0, 0, 0, 0)
	six = append(append(six, netip.MustParseAddr("2001:db8::2").AsSlice()...), 0, 0, 0, 0)
	m := nlconn.NewGeneric(0, unix.WG_CMD_GET_DEVICE, 1)
	m.Uint16(unix.WGDEVICE_A_LISTEN_PORT, 51820)
	m.Nest(unix.WGDEVICE_A_PEERS, func() {
		for _, endpoint := range [][]byte{four, six, nil} {
			m.Nest(0, func() {
				m.Bytes(unix.WGPEER_A_PUBLIC_KEY, make([]byte, 32))
				if endpoint != nil {
					m.Bytes(unix.WGPEER_A_ENDPOINT, endpoint)
				}
			})
		}
	})
	have := Device{}
	if err := have.parseWireGuard(m.Body); err != nil {
		t.Fatal(err)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:51820"), netip.MustParseAddrPort("[2001:db8::2]:51821")}
	if have.Port != 51820 || !slices.Equal(have.Peers, want) {
		t.Errorf("have %+v, want peers %v", have, want)
	}
}
