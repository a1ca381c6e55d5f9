package packets_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/test/await"
)

// testMAC is the destination of the frames of these tests, for a filter without the kernel's own packets.
var testMAC = []byte{2, 0xca, 0xfe, 0, 0, 1}

// testFilter keeps at most snaplen bytes of the frames to testMAC.
func testFilter(snaplen uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(testMAC), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: snaplen},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// frame is an Ethernet frame to testMAC with a number.
func frame(number, size int, middle ...byte) []byte {
	b := append(append([]byte{}, testMAC...), 2, 0, 0, 0, 0, 9)
	b = append(append(b, middle...), 0x88, 0xb5) // an EtherType for experiments
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	return append(b, bytes.Repeat([]byte{byte(number)}, size-len(b))...)
}

// sender returns a function that sends frames on a link of the calling thread's namespace.
func sender(index int) (send func([]byte) error, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	return func(b []byte) error {
		return unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: index, Halen: 6})
	}, err
}

// bothSenders returns functions that send from the two ends of a pair.
func bothSenders(t *testing.T, n *netops.Net, ns *netops.Namespace, box *netopstest.NS) (fromHost, fromBox func([]byte) error) {
	t.Helper()
	fromHost, err := sender(index(t, n, nil, "rawp"))
	if err != nil {
		t.Fatal(err)
	}
	inner := index(t, n, ns, "eth0")
	box.Do(t, func() (err error) {
		fromBox, err = sender(inner)
		return err
	})
	return fromHost, fromBox
}

// openCapture captures at both ends of a pair.
func openCapture(t *testing.T, n *netops.Net, ns *netops.Namespace, filter []unix.SockFilter) *packets.Capture {
	t.Helper()
	c, err := packets.OpenCapture(context.Background(), n, []packets.End{{Namespace: ns, Link: "eth0"}, {Link: "rawp"}}, filter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// received is a packet of a capture.
type received struct {
	packets.Packet
	end int
}

// next returns the packets of one Next.
func next(c *packets.Capture) (all []received, err error) {
	err = c.Next(func(end int, p *packets.Packet) error {
		copied := *p
		copied.Data = bytes.Clone(p.Data)
		all = append(all, received{copied, end})
		return nil
	})
	return all, err
}

// rest stops a capture and returns what it has.
func rest(t *testing.T, c *packets.Capture) (all []received) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for {
		more, err := next(c)
		all = append(all, more...)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readWhile returns what a capture has while frames are sent.
func readWhile(t *testing.T, c *packets.Capture, send func() error) (all []received) {
	t.Helper()
	sent := make(chan error)
	go func() { sent <- send() }()
	for {
		select {
		case err := <-sent:
			if err != nil {
				t.Fatal(err)
			}
			return all
		default:
			more, err := next(c)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, more...)
		}
	}
}

// TestCapture: every frame is there at both ends, whole, and in the order of time. A sender may be told of its success before the
// frame has arrived, so that the next frame, from the other end, can leave earlier.
func TestCapture(t *testing.T) {
	n, ns, box := pair(t)
	fromHost, fromBox := bothSenders(t, n, ns, box)
	c := openCapture(t, n, ns, testFilter(1<<18))
	const frames = 3000
	before := time.Now()
	got := readWhile(t, c, func() (err error) {
		for i := range frames {
			send := fromBox
			if i%2 == 1 {
				send = fromHost
			}
			err = errors.Join(err, send(frame(i, 60+i%1400)))
		}
		return err
	})
	after := time.Now()
	got = append(got, rest(t, c)...)
	if len(got) != 2*frames {
		t.Fatalf("%d packets, want %d", len(got), 2*frames)
	}
	last := before
	var sent, arrived [2]int // by the end that sends
	for i, p := range got {
		from, count := p.end, &sent
		if !p.Outgoing {
			from, count = 1-p.end, &arrived
		}
		number := 2*count[from] + from
		count[from]++
		if arrived[from] > sent[from] {
			t.Fatalf("packet %d: frame %d arrived before it was sent", i, number)
		}
		if !bytes.Equal(p.Data, frame(number, 60+number%1400)) || p.Size != len(p.Data) {
			t.Fatalf("packet %d at end %d, outgoing %t, is not frame %d: %d bytes %x", i, p.end, p.Outgoing, number, p.Size, p.Data[:20])
		}
		if p.Time.Before(last) || p.Time.After(after) {
			t.Fatalf("packet %d at %v, after %v", i, p.Time, last)
		}
		last = p.Time
	}
}

// TestCaptureTag: a VLAN tag is in the packet, also where the kernel has removed it.
func TestCaptureTag(t *testing.T) {
	n, ns, box := pair(t)
	_, fromBox := bothSenders(t, n, ns, box)
	c := openCapture(t, n, ns, testFilter(64))
	tagged := map[string][]byte{
		"802.1Q": frame(1, 100, 0x81, 0x00, 0x60, 0x07), "802.1ad": frame(2, 100, 0x88, 0xa8, 0x00, 0x05), "two": frame(3, 100, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 7),
	}
	for what, f := range tagged {
		if err := fromBox(f); err != nil {
			t.Fatal(what, err)
		}
	}
	got := rest(t, c)
	if len(got) != 2*len(tagged) {
		t.Fatalf("%d packets", len(got))
	}
	for i := range len(tagged) {
		sent, arrived := got[2*i], got[2*i+1]
		if sent.Size != 100 || arrived.Size != 100 || len(sent.Data) < 64 || !bytes.Equal(sent.Data[:64], arrived.Data[:64]) {
			t.Errorf("sent %d bytes %x, arrived %d bytes %x", sent.Size, sent.Data, arrived.Size, arrived.Data)
		}
	}
}

// TestCaptureDrops: what does not fit into the ring of a reader that pauses is counted.
func TestCaptureDrops(t *testing.T) {
	n, ns, box := pair(t)
	_, fromBox := bothSenders(t, n, ns, box)
	const frames = 20000 // of 1,500 bytes: 30 MB for a ring of 16 MiB
	send := func() (err error) {
		for i := range frames {
			err = errors.Join(err, fromBox(frame(i, 1500)))
		}
		return err
	}
	for _, pauses := range []bool{true, false} {
		snaplen := uint32(128)
		if pauses {
			snaplen = 1500
		}
		c := openCapture(t, n, ns, testFilter(snaplen))
		var got []received
		if !pauses {
			got = readWhile(t, c, send)
		} else if err := send(); err != nil {
			t.Fatal(err)
		}
		var count [2]uint64
		for _, p := range append(got, rest(t, c)...) {
			count[p.end]++
		}
		for end := range count {
			dropped, err := c.Dropped(end)
			if err != nil || (dropped > 0) != pauses || count[end]+dropped != frames {
				t.Errorf("pauses %t, end %d: %d packets and %d dropped of %d, %v", pauses, end, count[end], dropped, frames, err)
			}
		}
	}
}

// TestCaptureFilterFirst: no packet escapes the filter, however many there are when the capture begins.
func TestCaptureFilterFirst(t *testing.T) {
	n, ns, box := pair(t)
	_, fromBox := bothSenders(t, n, ns, box)
	var flood sync.WaitGroup
	stop := make(chan struct{})
	flood.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = fromBox(frame(0, 60))
			}
		}
	})
	defer flood.Wait()
	defer close(stop)
	for range 20 {
		c := openCapture(t, n, ns, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}})
		if got := rest(t, c); len(got) > 0 {
			t.Fatalf("%d packets", len(got))
		}
	}
}

// TestCaptureGone: a capture survives a link that is down for a while, and reports one that is deleted.
func TestCaptureGone(t *testing.T) {
	n, ns, box := pair(t)
	fromHost, _ := bothSenders(t, n, ns, box)
	c := openCapture(t, n, ns, testFilter(64))
	nstest.IP(t, "link set rawp down")
	nstest.IP(t, "link set rawp up")
	if err := fromHost(frame(1, 60)); err != nil {
		t.Fatal(err)
	}
	if err := end(t, c); !errors.Is(err, errFound) {
		t.Fatalf("after the link was down: %v", err)
	}
	nstest.IP(t, "link del rawp")
	nstest.IP(t, "link add rawp type bridge") // another link; the cleanup of pair deletes it
	err := end(t, c)
	if errors.Is(err, errFound) { // the packet at the other end
		err = end(t, c)
	}
	if !errors.Is(err, netops.ErrNotExist) {
		t.Fatalf("after the link was deleted: %v", err)
	}
	rest(t, c)
}

var errFound = errors.New("found a packet")

// end waits until a capture ends or has a packet.
func end(t *testing.T, c *packets.Capture) error {
	t.Helper()
	for deadline := await.Deadline(); time.Now().Before(deadline); {
		found, err := next(c)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return errFound
		}
	}
	return errors.New("nothing happened")
}

func TestCaptureRefused(t *testing.T) {
	n, _, _ := pair(t)
	nstest.IP(t, "tuntap add name captun mode tun")
	t.Cleanup(func() { nstest.IP(t, "link del captun") })
	for _, c := range []struct {
		link   string
		filter []unix.SockFilter
		want   error
	}{
		{"absent", testFilter(1), netops.ErrNotExist},
		{"captun", testFilter(1), netops.ErrInvalid},
		{"rawp", nil, netops.ErrInvalid},
		{"rawp", make([]unix.SockFilter, unix.BPF_MAXINSNS+1), netops.ErrInvalid},
	} {
		_, err := packets.OpenCapture(context.Background(), n, []packets.End{{Link: "rawp"}, {Link: c.link}}, c.filter)
		if !errors.Is(err, c.want) {
			t.Errorf("%s with %d instructions: %v, want %v", c.link, len(c.filter), err, c.want)
		}
	}
}
