package netpolicy_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/test/await"
)

// Options of IPVS's sockets (net/netfilter/ip_vs.h).
const (
	addService    = 64 + 1024 + 64 + 2
	flushServices = 64 + 1024 + 64 + 5
	addServer     = 64 + 1024 + 64 + 7
)

// serve makes a UDP service of IPVS with one server, as kube-proxy does.
func serve(t *testing.T, service, server netip.AddrPort) {
	t.Helper()
	ip(t, fmt.Sprintf("addr add %s/32 dev kube-ipvs0", service.Addr()))
	end := func(b []byte, a netip.AddrPort) []byte {
		return append(binary.BigEndian.AppendUint16(append(b, a.Addr().AsSlice()...), a.Port()), 0, 0)
	}
	svc := end([]byte{unix.IPPROTO_UDP, 0, 0, 0}, service)
	svc = append(append(svc, 0, 0, 0, 0), "rr"...) // no mark, and the scheduler's name
	svc = append(svc, make([]byte, 14+8)...)       // flags, timeout
	svc = append(svc, 0xff, 0xff, 0xff, 0xff)      // the mask
	dst := append(end(nil, server), 0, 0, 0, 0)    // masquerading
	dst = binary.NativeEndian.AppendUint32(dst, 1) // weight
	dst = append(dst, make([]byte, 8)...)          // thresholds
	ipvs(t, addService, string(svc))
	ipvs(t, addServer, string(svc)+string(dst))
}

// TestIPVS: policies apply to connections to services of IPVS, which do not pass the forward hook: by the pod that connects, and by the
// server behind the service. The node itself reaches each service.
func TestIPVS(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); errors.Is(err, fs.ErrNotExist) && os.Getenv("CNIBOX_TEST_VM") == "" {
		t.Skip("this kernel has no IPVS: make test-vm")
	}
	forwarding(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/vs/conntrack", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	ip(t, "link add kube-ipvs0 type dummy")
	ip(t, "addr add 10.8.240.250/32 dev lo") // the node's
	f, table := openFilter(t), netpolicy.NewTable()
	var pods []*pod
	var servers []*net.UDPConn
	for n := range 3 {
		p := routed(t, n, netpolicy.Pod{
			Namespace: "default", Name: fmt.Sprint("p", n), UID: fmt.Sprint(n), Labels: map[string]string{"n": fmt.Sprint(n)},
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.8.240.%d", n+1))},
		})
		one := p.Pod
		table.PutPod(&one)
		pods, servers = append(pods, p), append(servers, p.listen(t, 80))
		serve(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 8, 241, byte(n)}), 80), netip.AddrPortFrom(p.Addresses[0], 80))
	}
	locals(table)
	node := &pod{ns: netopstest.At("/proc/self/ns/net")}
	// open returns a socket of a pod that is connected to the service of another.
	open := func(from *pod, to int) (c net.Conn) {
		t.Helper()
		from.ns.Do(t, func() (err error) { c, err = net.Dial("udp", fmt.Sprintf("10.8.241.%d:80", to)); return err })
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	// passes sends a datagram to a service and gets an answer.
	passes := func(c net.Conn, to int) {
		t.Helper()
		send(t, c, "hello")
		b := make([]byte, 100)
		_ = servers[to].SetReadDeadline(await.Deadline())
		_, from, err := servers[to].ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := servers[to].WriteTo([]byte("answer"), from); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(await.Deadline())
		if n, err := c.Read(b); err != nil || string(b[:n]) != "answer" {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	// A pod does not accept its own address as the source of an answer: kube-proxy masquerades these.
	for _, line := range []string{
		"add table ip hairpin", "add chain ip hairpin post { type nat hook postrouting priority srcnat ; }",
		"add rule ip hairpin post ip saddr 10.8.240.2 ip daddr 10.8.240.2 masquerade",
	} {
		run(t, "nft", line)
	}
	t.Cleanup(func() { run(t, "nft", "delete table ip hairpin") })
	before := open(pods[0], 1)
	passes(before, 1) // a connection that a policy begins to forbid
	const policy = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{%s}}`
	for name, spec := range map[string]string{
		"egress":  `"podSelector":{"matchLabels":{"n":"0"}},"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{"matchLabels":{"n":"2"}}}]}]`,
		"ingress": `"podSelector":{"matchLabels":{"n":"1"}},"policyTypes":["Ingress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"n":"2"}}}]}]`,
	} {
		t.Run(name, func(t *testing.T) {
			put(t, table, fmt.Sprintf(policy, spec))
			ensure(t, f, table)
			for range 3 {
				send(t, before, "forbidden")
				send(t, open(pods[0], 1), "forbidden")
				passes(open(pods[0], 2), 2)
				if text := received(t, servers[1]); text != "" {
					t.Errorf("received %q", text)
				}
			}
			passes(open(pods[2], 1), 1)
			passes(open(pods[1], 1), 1) // itself: only 'ct status dnat' would forbid it
			passes(open(node, 1), 1)
			passes(open(node, 0), 0)
		})
	}
	table.RemovePolicy("default", "p")
	ensure(t, f, table)
	passes(open(pods[0], 1), 1)
	for _, left := range []bool{true, false} { // the chains go with the services
		out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").CombinedOutput()
		if err != nil || strings.Contains(string(out), "chain service_") != left {
			t.Errorf("%v: %s", err, out)
		}
		ipvs(t, flushServices, "")
		ensure(t, f, table)
	}
}

// ipvs sets an option of IPVS.
func ipvs(t *testing.T, option int, value string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if err := unix.SetsockoptString(fd, unix.IPPROTO_IP, option, value); err != nil {
		t.Fatalf("option %d: %v", option, err)
	}
}
