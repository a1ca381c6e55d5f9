package dhcp_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is a running server or daemon with its output.
type program struct {
	cmd  *exec.Cmd
	done chan error

	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

// start starts a program in a namespace, or in the host's if ns is nil. It ends with the test.
func start(t testing.TB, ns *netopstest.NS, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{cmd: cmd, done: make(chan error, 1), changed: make(chan struct{}, 1)}
	r, w, err := os.Pipe()
	must(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	if ns == nil {
		must(t, cmd.Start())
	} else {
		ns.Do(t, cmd.Start)
	}
	w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			p.mu.Lock()
			p.text.WriteString(line)
			p.mu.Unlock()
			select {
			case p.changed <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	go func() { p.done <- cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		<-read
		r.Close()
		if s := p.said(); strings.Contains(s, "DATA RACE") || strings.Contains(s, "panic") {
			t.Errorf("%s reported an error", cmd.Path)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), p.said())
		}
	})
	return p
}

func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// await waits until the program's output contains a text n times.
func (p *program) await(t testing.TB, word string, n int) {
	t.Helper()
	limit := time.After(await.Patience)
	for strings.Count(p.said(), word) < n {
		select {
		case <-p.changed:
		case err := <-p.done:
			p.done <- err
			if strings.Count(p.said(), word) < n {
				t.Fatalf("%s ended before it printed %q: %v\n%s", p.cmd.Path, word, err, p.said())
			}
		case <-limit:
			t.Fatalf("%s did not print %q %d times:\n%s", p.cmd.Path, word, n, p.said())
		}
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	p.done <- <-p.done
}

// stop ends the program as a service manager does.
func (p *program) stop(t testing.TB) {
	t.Helper()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.done:
		p.done <- err
		if err != nil {
			t.Errorf("%s: %v", p.cmd.Path, err)
		}
	case <-time.After(await.Patience):
		t.Fatalf("%s did not end", p.cmd.Path)
	}
}

// wire is a bridge on the host with a namespace for servers on it.
type wire struct {
	server *netopstest.NS
}

// newWire makes bridge br0 and a server's namespace with 10.9.0.1 and fd09::1 on eth0.
func newWire(t testing.TB) *wire {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	br := bridge(t)
	t.Cleanup(func() { _ = netlink.LinkDel(br) })
	must(t, netlink.LinkSetUp(br))
	return &wire{server: join(t, br, "sv0", "10.9.0.1/24", "fd09::1/64")}
}

func bridge(t testing.TB) netlink.Link {
	t.Helper()
	br, err := netlink.LinkByName("br0")
	must(t, err)
	return br
}

// join puts a namespace with addresses on the bridge.
func join(t testing.TB, br netlink.Link, port string, addrs ...string) *netopstest.NS {
	t.Helper()
	ns := netopstest.New(t)
	f, err := os.Open(ns.Path())
	must(t, err)
	defer f.Close()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: br.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd())}
	must(t, netlink.LinkAdd(v))
	t.Cleanup(func() { _ = netlink.LinkDel(v) })
	l, err := netlink.LinkByName(port)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	ns.Do(t, func() error {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0o600)
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, a := range addrs {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = syscall.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	})
	return ns
}

// iscServer is isc-dhcp-server with its lease file.
type iscServer struct {
	*program
	leases string
}

const isc4 = `
authoritative; ping-check false;
option rfc3442-classless-static-routes code 121 = array of integer 8;
subnet 10.9.0.0 netmask 255.255.255.0 { range 10.9.0.10 10.9.0.250; option routers 10.9.0.1; %s }
`

// isc starts dhcpd for a family in a namespace.
func isc(t testing.TB, ns *netopstest.NS, family, conf string) *iscServer {
	t.Helper()
	if _, err := exec.LookPath("dhcpd"); err != nil {
		t.Fatal("isc-dhcp-server is missing: run test/apt.sh")
	}
	dir := t.TempDir()
	s := &iscServer{leases: filepath.Join(dir, "leases")}
	must(t, os.WriteFile(s.leases, nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600))
	s.program = start(t, ns, exec.Command("dhcpd", family, "-f", "-d", "-cf", filepath.Join(dir, "conf"), "-lf", s.leases, "-pf", filepath.Join(dir, "pid"), "eth0"))
	s.await(t, "Server starting service", 1)
	return s
}

// daemon starts the dhcp daemon of the test's node.
func daemon(t testing.TB, e *rolestest.Env, args ...string) *program {
	t.Helper()
	return daemonAt(t, e, socketOf(e), args...)
}

// daemonAt is like daemon, with the given socket.
func daemonAt(t testing.TB, e *rolestest.Env, socket string, args ...string) *program {
	t.Helper()
	cmd := e.Cmd(rolestest.Call{Type: "dhcp"})
	cmd.Args = append(append(cmd.Args, "daemon", "-socketpath", socket), args...)
	cmd.Env = append(cmd.Env, "CNIBOX_LOG=debug")
	p := start(t, nil, cmd)
	p.await(t, "listening", 1)
	return p
}

func socketOf(e *rolestest.Env) string { return filepath.Join(e.RunDir(), "dhcp.sock") }

// conf returns a bridge's configuration with addresses by DHCP. more has more keys of ipam.
func conf(e *rolestest.Env, more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"lan","type":"bridge","bridge":"br0","ipam":{"type":"dhcp","daemonSocketPath":%q%s}}`, socketOf(e), more)
}

// call returns a call for container c1.
func call(verb string, ns *netopstest.NS, conf string) rolestest.Call {
	return rolestest.Call{Type: "bridge", Verb: verb, ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: conf}
}

func isc4With(more string) string { return fmt.Sprintf(isc4, more) }

const isc6 = `
authoritative; %s
subnet6 fd09::/64 { range6 fd09::100 fd09::1ff; option dhcp6.name-servers fd09::1; option dhcp6.domain-search "example.org"; }
`

// dnsmasq starts dnsmasq for both families in a namespace, with addresses
// 10.9.0.<from>… and fd09::<from>….
func dnsmasq(t testing.TB, ns *netopstest.NS, from string, more ...string) *program {
	t.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Fatal("dnsmasq-base is missing: run test/apt.sh")
	}
	args := append([]string{
		"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file",
		"--interface=eth0", "--no-ping", "--dhcp-authoritative", "--dhcp-leasefile=" + filepath.Join(t.TempDir(), "leases"),
		"--dhcp-range=10.9.0." + from + ",10.9.0.250,2m", "--dhcp-range=fd09::" + from + ",fd09::fff,64,2m",
	}, more...)
	p := start(t, ns, exec.Command("dnsmasq", args...))
	p.await(t, "DHCPv6, IP range", 1)
	return p
}
