package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/packets"
)

// kernel runs a program on packets: the kernel's filter of a socket sees each datagram whole.
type kernel struct{ in, out int }

func newKernel(t testing.TB, program []unix.SockFilter) *kernel {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	err = unix.SetsockoptSockFprog(pair[1], unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err != nil {
		t.Fatalf("the kernel refuses %v: %v", program, err)
	}
	return &kernel{pair[0], pair[1]}
}

// accepts returns how many bytes of a packet the program keeps, 0 for a packet that it drops.
func (k *kernel) accepts(t testing.TB, packet []byte) int {
	t.Helper()
	if err := unix.Send(k.in, packet, 0); err != nil && !errors.Is(err, unix.EPERM) { // EPERM: the filter drops it
		t.Fatal(err)
	}
	n, _, err := unix.Recvfrom(k.out, make([]byte, 1<<16), 0)
	if errors.Is(err, unix.EAGAIN) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// samples returns well-formed packets of all kinds that the language distinguishes. The last bytes of each are its index.
func samples() (all [][]byte) {
	add := func(kind uint16, parts ...[]byte) {
		p := binary.BigEndian.AppendUint16(append(make([]byte, 0, 80), 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2), kind)
		p = append(p, slices.Concat(parts...)...)
		p = append(p, make([]byte, max(0, 60-len(p)))...)
		all = append(all, binary.BigEndian.AppendUint32(p, uint32(len(all))))
	}
	ip4 := func(proto byte, fragment uint16, options int, from, to string) []byte {
		b := make([]byte, 20+options)
		b[0], b[8], b[9] = 0x40|byte(5+options/4), 64, proto
		binary.BigEndian.PutUint16(b[6:], fragment)
		copy(b[12:], netip.MustParseAddr(from).AsSlice())
		copy(b[16:], netip.MustParseAddr(to).AsSlice())
		return b
	}
	ip6 := func(next byte, from, to string) []byte {
		b := make([]byte, 8, 40)
		b[0], b[6], b[7] = 0x60, next, 64
		return slices.Concat(b, netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice())
	}
	ports := func(from, to uint16) []byte {
		b := binary.BigEndian.AppendUint16(nil, from)
		return append(binary.BigEndian.AppendUint16(b, to), make([]byte, 16)...)
	}
	hosts := []string{"10.0.0.1", "10.0.0.2", "10.1.0.1", "192.0.2.9"}
	hosts6 := []string{"fd00::1", "fd00::2", "fd00:0:0:1::1", "2001:db8::9"}
	protocols := []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, 47}
	for i, from := range hosts {
		to := hosts[(i+1)%len(hosts)]
		for _, proto := range protocols {
			for j, port := range []uint16{80, 443, 53, 8080} {
				add(unix.ETH_P_IP, ip4(proto, 0x4000, 4*(j%3), from, to), ports(port, 50000))
				add(unix.ETH_P_IP, ip4(proto, 0, 0, to, from), ports(50000, port))
				add(unix.ETH_P_IP, ip4(proto, 7, 0, to, from), ports(port, port)) // a later fragment
				add(unix.ETH_P_IP, ip4(proto, 0x2000, 0, from, from), ports(port, port))
				add(unix.ETH_P_IPV6, ip6(proto, hosts6[i], hosts6[(i+1)%len(hosts6)]), ports(port, 50000))
				add(unix.ETH_P_IPV6, ip6(unix.IPPROTO_FRAGMENT, hosts6[i], hosts6[j]), []byte{proto, 0, 0, 1, 0, 0, 0, 1}, ports(50000, port))
				add(unix.ETH_P_IPV6, ip6(unix.IPPROTO_HOPOPTS, hosts6[i], hosts6[j]), []byte{proto, 0, 1, 4, 0, 0, 0, 0}, ports(50000, port))
			}
		}
		for _, kind := range []uint16{unix.ETH_P_ARP, etherRARP} {
			for op := byte(1); op < 5; op++ {
				b := append([]byte{0, 1, 8, 0, 6, 4, 0, op, 2, 0, 0, 0, 0, 1}, netip.MustParseAddr(from).AsSlice()...)
				add(kind, b, []byte{2, 0, 0, 0, 0, 2}, netip.MustParseAddr(to).AsSlice())
			}
		}
	}
	add(0x88cc, make([]byte, 30))
	all[len(all)-1][11] = 7 // another source
	for _, kind := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD, unix.ETH_P_QINQ1} {
		add(kind, []byte{0x60, 7, 8, 0}, ip4(unix.IPPROTO_TCP, 0, 0, "10.0.0.1", "10.0.0.2"), make([]byte, 20))
		add(kind, []byte{0x01, 7, 0x86, 0xdd}, ip6(unix.IPPROTO_UDP, "fd00::1", "fd00::2"), make([]byte, 8))
	}
	return all
}

// tcpdump returns the indices of the samples that tcpdump finds in a file by an expression, or its error.
func tcpdump(file, expression string) (found []int, err error) {
	out, err := exec.Command("tcpdump", "-Z", "root", "-n", "-r", file, "-w", "-", expression).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(string(exit.Stderr), "expression rejects all packets") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for out = out[24:]; len(out) > 0; { // after the header of the old format
		size := binary.LittleEndian.Uint32(out[8:])
		found = append(found, int(binary.BigEndian.Uint32(out[16+size-4:])))
		out = out[16+size:]
	}
	return found, nil
}

// sampleFile writes the samples to a pcapng file.
func sampleFile(t *testing.T, frames [][]byte) string {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, "test", "samples")
	if err == nil {
		err = w.Interface(Interface{Name: "eth0", Snaplen: 65535})
	}
	for _, p := range frames {
		err = errors.Join(err, w.Packet(0, &packets.Packet{Time: time.Unix(1, 0), Data: p, Size: len(p)}))
	}
	path := filepath.Join(t.TempDir(), "samples.pcapng")
	if err = errors.Join(err, w.Flush(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// expression returns a random expression.
func expression(r *rand.Rand, depth int) string {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	if depth > 0 {
		switch r.IntN(5) {
		case 0:
			return pick("not ", "! ", "!") + expression(r, depth-1)
		case 1:
			return "(" + expression(r, depth-1) + ")"
		case 2, 3:
			return expression(r, depth-1) + pick(" and ", " or ", " && ", "||") + expression(r, depth-1)
		}
	}
	direction := pick("", "", "src ", "dst ", "src or dst ", "src and dst ", "dst or src ")
	host := pick("10.0.0.1", "10.0.0.2", "10.1.0.1", "192.0.2.9", "203.0.113.1")
	host6 := pick("fd00::1", "fd00::2", "2001:db8::9")
	port := pick("80", "443", "53", "50000", "0", "65535")
	switch r.IntN(8) {
	case 0:
		return pick("ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6")
	case 1:
		return pick("", "ip ", "arp ", "rarp ") + direction + "host " + host + pick("", " or 10.0.0.2", " or (10.0.0.2 or 192.0.2.9)")
	case 2:
		return pick("", "ip6 ") + direction + "host " + host6 + pick("", " and not fd00::2")
	case 3:
		return pick("", "ip ", "arp ") + direction + "net " + pick("10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/31", "0.0.0.0/0", "192.0.2.9/32")
	case 4:
		return pick("", "ip6 ") + direction + "net " + pick("fd00::/16", "fd00::/64", "fd00::/127", "::/0", "2001:db8::9/128")
	case 5:
		return pick("", "tcp ", "udp ", "sctp ") + direction + "portrange " + pick("1-100", "80-80", "0-65535", "444-50000")
	case 6:
		return pick("src ", "dst ") + host
	}
	return pick("", "tcp ", "udp ", "sctp ") + direction + "port " + port + pick("", " or 443", " or (80 or 53)")
}

// TestAsTcpdump: a filter accepts the packets that tcpdump accepts.
func TestAsTcpdump(t *testing.T) {
	packets := samples()
	file := sampleFile(t, packets)
	r := rand.New(rand.NewPCG(17, 17))
	expressions := []string{
		"", "tcp port 80 or 443", "host 10.0.0.1 or 10.0.0.2 and udp", "not host 10.0.0.1 and port 53", "not (tcp or udp) and ip",
		"port (80 or 53) or 443", "src host 10.0.0.1 and tcp dst port 50000 or arp", "icmp or icmp6", "net 10.1.0.0/16 and not icmp",
		"vlan", "vlan 7", "not vlan", "ip or vlan 263", "not (vlan 7)", "ether host 02:00:00:00:00:07", "ether src 02:00:00:00:00:02 and not ip",
		"ether dst 02:00:00:00:00:01 and arp", "ether host 02:00:00:00:00:07 or 02:00:00:00:00:08", "src host 10.0.0.1 and not ether src 02:00:00:00:00:07",
	}
	for range 150 {
		expressions = append(expressions, expression(r, 4))
	}
	matches := 0
	for _, e := range expressions {
		program, err := Compile(e, 1<<18)
		if err != nil {
			t.Errorf("%q: %v", e, err)
			continue
		}
		k := newKernel(t, program)
		var got []int
		for i, p := range packets {
			switch n := k.accepts(t, p); n {
			case 0:
			case len(p):
				got = append(got, i)
			default:
				t.Fatalf("%q keeps %d of %d bytes", e, n, len(p))
			}
		}
		want, err := tcpdump(file, e)
		if err != nil {
			t.Fatalf("tcpdump refuses %q: %v", e, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q accepts %d packets %v, tcpdump %d packets %v", e, len(got), got, len(want), want)
		}
		if len(want) > 0 && len(want) < len(packets) {
			matches++
		}
	}
	if matches < len(expressions)/2 {
		t.Errorf("only %d of %d expressions distinguish packets", matches, len(expressions))
	}
}

// TestSnaplen: a filter keeps the first bytes only.
func TestSnaplen(t *testing.T) {
	for _, e := range []string{"", "ip"} {
		program, err := Compile(e, 34)
		if err != nil {
			t.Fatal(err)
		}
		if n := newKernel(t, program).accepts(t, samples()[0]); n != 34 {
			t.Errorf("%q keeps %d bytes", e, n)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ expression, want string }{
		{"web", `want a condition such as "tcp port 80" instead of "web"`},
		{"10.0.0.1", `instead of "10.0.0.1"`},
		{"tcp or 80", `instead of "80"`},
		{"vlan 4096", `vlan "4096": want a number up to 4095`},
		{"vlan a", `vlan "a": want a number`},
		{"tcp vlan 7", `before "vlan"`},
		{"ether", `want host, src or dst after ether instead of ""`},
		{"ether tcp", `instead of "tcp"`},
		{"ether host 10.0.0.1", `ether host "10.0.0.1": want a MAC address`},
		{"ether host 02:00:00:00:00:00:00:01", "want a MAC address"},
		{"ether port 80", "ether has no ports"},
		{"ether net 10.0.0.0/8", "ether has no address"},
		{"host web", `want an address or port instead of "web"`},
		{"host", `want an address or port instead of ""`},
		{"host 10.0.0", `host "10.0.0": want an IP address`},
		{"host fe80::1%eth0", `instead of "fe80::1%eth0"`},
		{"net 10.0.0.1/8", `want a subnet such as 10.0.0.0/8`},
		{"port 65536", "want a number up to 65535"},
		{"port 1-2", "for portrange two"},
		{"portrange 2-1", "for portrange two"},
		{"portrange 80", "for portrange two"},
		{"icmp port 80", "icmp has no ports"},
		{"tcp host 10.0.0.1", "tcp has no address 10.0.0.1/32"},
		{"ip6 net 10.0.0.0/8", "ip6 has no address"},
		{"(tcp", `want ")"`},
		{"port (80", `want ")"`},
		{"tcp)", `want "and" or "or" before ")"`},
		{"tcp udp", `before "udp"`},
		{"tcp and", `instead of ""`},
		{"not", `instead of ""`},
		{strings.Repeat("port 80 or ", 300) + "port 80", "shorten it"},
		{strings.Repeat(" ", 5000), "want at most 4096"},
	} {
		_, err := Compile(c.expression, 1)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %s", c.expression, err, c.want)
		}
	}
}

// FuzzCompile: the kernel accepts every program, and a packet of any length does not confuse it.
func FuzzCompile(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add(expression(r, 3), samples()[0])
	}
	f.Add("((!(not tcp port (80 or 443))))", []byte{})
	f.Fuzz(func(t *testing.T, e string, packet []byte) {
		program, err := Compile(e, 1<<16)
		if err != nil {
			return
		}
		if len(packet) > 1<<15 {
			return
		}
		if k := newKernel(t, program); len(packet) > 0 {
			k.accepts(t, packet)
		}
	})
}
