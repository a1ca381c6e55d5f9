package overlay

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// refuseOffload is a kernel that cannot switch the offload.
type refuseOffload struct{}

func (refuseOffload) Before(st netops.Step) error {
	if strings.Contains(st.Object.String(), "tx-checksum") {
		return unix.EOPNOTSUPP
	}
	return nil
}
func (refuseOffload) After(netops.Step) {}

// TestOverlayTxChecksum switches the offload of the device off and on in place. Another program's change is undone, unless the
// offload is nobody's.
func TestOverlayTxChecksum(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			makeNodes(t, n)
			o := openOverlay(t, n, Options{})
			ethtool := func(command, value uint32) uint32 {
				t.Helper()
				is, err := o.conn.EthtoolValue(n.device, command, value)
				if err != nil {
					t.Fatal(err)
				}
				return is
			}
			spec := n.spec()
			apply(t, o, spec)
			kept := deviceIndex(t, n)
			for _, c := range []struct {
				want string
				is   uint32
			}{{"off", 0}, {"on", 1}, {"off", 0}, {"", 0}} {
				spec.Device = n.vtep()
				spec.Device.TxChecksum = c.want
				apply(t, o, spec)
				if is := ethtool(unix.ETHTOOL_GTXCSUM, 0); is != c.is || deviceIndex(t, n) != kept {
					t.Errorf("%q: the offload is %d, and the index %s, was %s", c.want, is, deviceIndex(t, n), kept)
				}
				settled(t, o, spec)
				if c.want == "" {
					continue
				}
				ethtool(unix.ETHTOOL_STXCSUM, 1-c.is)
				awaitChange(t, o, c.want)
				r := apply(t, o, spec)
				if is := ethtool(unix.ETHTOOL_GTXCSUM, 0); is != c.is || r.Repaired["device"] != 1 || !strings.Contains(r.FirstRepair, "tx-checksum "+c.want) {
					t.Errorf("%q was not restored: %d, %+v", c.want, is, r)
				}
				settled(t, o, spec)
			}
			probe(t, o, refuseOffload{})
			spec.Device.TxChecksum = "on"
			_, err := o.Apply(t.Context(), spec)
			if !errors.Is(err, nlconn.ErrNotSupported) || !strings.Contains(err.Error(), "leave out -vxlan-tx-checksum-offload and Backend.TxChecksumOffload") {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
