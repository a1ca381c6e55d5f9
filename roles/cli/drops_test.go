package cli

import (
	"bytes"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

// TestDrops reads the kernel's reports. Only the virtual machine has its first namespace and the module.
func TestDrops(t *testing.T) {
	if os.Getenv("CNIBOX_TEST_VM") == "" {
		t.Skip("needs the machine's first network namespace and the module drop_monitor: make test-vm")
	}
	runScripts(t, "testdata/drops")
}

// TestDropCounters runs in a namespace without reports.
func TestDropCounters(t *testing.T) { runScripts(t, "testdata/dropcounters") }

// TestDropLines: repetitions are counted, IPv6 multicast and too many flows are folded.
func TestDropLines(t *testing.T) {
	var out bytes.Buffer
	l := &dropLog{
		p: &Process{Stdout: &out}, h: &roles.Host{Now: time.Now, Store: store.New(store.Options{StateDir: t.TempDir()})}, lines: map[dropKey]*dropRecord{},
		containers: []inventory.Attachment{
			{ContainerID: "other", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, MAC: "02:00:00:00:00:01", HostLink: "veth1"},
			{ContainerID: "id", Pod: "default/web", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, MAC: "02:00:00:00:00:02", HostLink: "veth2"},
		},
		links: []netops.LinkInfo{{Name: "eth0", MAC: "02:00:00:00:00:03"}},
	}
	drop := func(from, to, mac string) {
		l.add(packets.Drop{
			Time: time.Unix(0, 0), Reason: "NO_SOCKET", Symbol: "tcp_v4_rcv+0x1", Size: 60, Proto: "tcp", SourceMAC: mac,
			From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to),
		})
	}
	check := func(want ...string) {
		t.Helper()
		if err := l.repetitions(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
		}
		for i, w := range want {
			if !regexp.MustCompile(w).MatchString(lines[i]) {
				t.Errorf("line %q, want %q", lines[i], w)
			}
		}
		out.Reset()
	}
	for range 3 { // with three source ports
		drop("10.0.0.2:100"+string(rune('0'+l.printed)), "192.0.2.9:80", "02:00:00:00:00:02")
	}
	drop("10.0.0.2:5", "192.0.2.9:80", "02:00:00:00:00:09")
	drop("192.0.2.1:5", "192.0.2.9:80", "02:00:00:00:00:03")
	drop("[fe80::1]:5", "[ff02::2]:80", "02:00:00:00:00:02")
	check(
		`default/web veth2 tcp 10.0.0.2:1000 > 192.0.2.9:80 60 bytes NO_SOCKET in tcp_v4_rcv\+0x1$`,
		`other veth1 tcp 10.0.0.2:5 > 192.0.2.9:80 `, // the address, without a known MAC
		`- eth0 tcp 192.0.2.1:5 > `,
		`default/web veth2 .* \(2 packets\)$`,
		`- - to IPv6 multicast$`,
	)
	for port := range maxDropLines + 5 {
		drop("10.0.0.2:5", netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(1000+port)).String(), "02:00:00:00:00:02")
	}
	want := make([]string, maxDropLines, maxDropLines+1)
	check(append(want, `- - of other flows \(5 packets\)$`)...)
	l.only = map[string]bool{"other": true}
	drop("10.0.0.2:5", "192.0.2.9:80", "02:00:00:00:00:01")
	drop("192.0.2.1:5", "192.0.2.9:80", "02:00:00:00:00:03")
	check(`other veth1`)
}

// TestDropOutput: an output that fails is one error, however many lines follow.
func TestDropOutput(t *testing.T) {
	l := &dropLog{p: &Process{Stdout: failingWriter{}}, h: &roles.Host{Now: time.Now}, each: true}
	for range 3 {
		l.add(packets.Drop{})
	}
	if err := l.repetitions(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, unix.ENOSPC }
