package capture

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/packets"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// TestVLAN: a filter finds a tag in the packet, as at the end that sends it, and one that the kernel has
// removed, as at the end where it arrives.
func TestVLAN(t *testing.T) {
	for _, command := range []string{"link add v0 type veth peer name v1", "link set v0 up", "link set v1 up"} {
		if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
	}
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // it was only read
	l, err := n.Link(t.Context(), nil, "v0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, c := range []struct {
		filter string
		want   int
	}{
		{"vlan", 2}, {"vlan 7", 1}, {"not vlan", 1}, {"not vlan 7", 2}, {"vlan 9", 0}, {"vlan 7 or vlan 8", 2},
	} {
		program, err := Compile(c.filter+" and ether src 02:00:00:00:00:09", 64)
		if err != nil {
			t.Fatal(err)
		}
		captured, err := packets.OpenCapture(t.Context(), n, []packets.End{{Link: "v0"}, {Link: "v1"}}, program)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range [][]byte{{}, {0x81, 0, 0x60, 7}, {0x88, 0xa8, 0, 8}} {
			frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9}, tag...)
			frame = append(append(frame, 0x88, 0xb5), make([]byte, 60)...)
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Index, Halen: 6}); err != nil {
				t.Fatal(err)
			}
		}
		err = captured.Stop()
		var have [2]int
		for err == nil {
			err = captured.Next(func(end int, _ *packets.Packet) error {
				have[end]++
				return nil
			})
		}
		if !errors.Is(err, io.EOF) || have != [2]int{c.want, c.want} {
			t.Errorf("%q: %d packets at the ends, want %d: %v", c.filter, have, c.want, err)
		}
		if err := captured.Close(); err != nil {
			t.Error(err)
		}
	}
}
