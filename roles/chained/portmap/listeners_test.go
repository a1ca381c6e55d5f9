package portmap_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// ofAttachment finds elements of an attachment.
var ofAttachment = regexp.MustCompile(`comment "cnibox:[0-9a-f]`)

// nerdctlDir is nerdctl's directory.
const nerdctlDir = "/run/nerdctl"

// listenOn opens a socket on the node until the test ends.
func listenOn(t *testing.T, network, address string) {
	t.Helper()
	var l io.Closer
	var err error
	if strings.HasPrefix(network, "udp") {
		l, err = net.ListenPacket(network, address)
	} else {
		l, err = net.Listen(network, address)
	}
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

// reserve keeps ports ("tcp=0.0.0.0:80") as nerdctl does: a process that sleeps inherits the sockets, and a file has its number.
func reserve(t *testing.T, pidFile string, ports ...string) {
	t.Helper()
	c := exec.Command("sleep", "infinity")
	for _, p := range ports {
		network, address, _ := strings.Cut(p, "=")
		var file *os.File
		if network == "udp" {
			s, err := net.ListenPacket("udp4", address)
			must(t, err)
			file, err = s.(*net.UDPConn).File()
			must(t, errors.Join(err, s.Close()))
		} else {
			s, err := net.Listen("tcp4", address)
			must(t, err)
			file, err = s.(*net.TCPListener).File()
			must(t, errors.Join(err, s.Close()))
		}
		defer file.Close()
		c.ExtraFiles = append(c.ExtraFiles, file)
	}
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	must(t, os.MkdirAll(filepath.Dir(pidFile), 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(nerdctlDir) })
	must(t, os.WriteFile(pidFile, []byte(strconv.Itoa(c.Process.Pid)), 0o644)) //nolint:gosec // nerdctl's mode
}

// asPod is a call for a pod of Kubernetes.
func asPod(c rolestest.Call) rolestest.Call {
	c.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + c.ID
	return c
}

// TestListener: a pod does not get a port at which a process of the node listens, and the error names the process. Another container
// gets it, as with the reference plugin, and the log names the process. The key refuseListeners decides for both. Ports of other
// addresses and protocols are free, and so are those of clients and of listeners at loopback addresses.
func TestListener(t *testing.T) {
	w := newTown(t)
	w.Extra = append(w.Extra, "CNIBOX_LOG=warn")
	a := w.run("a")
	listenOn(t, "tcp4", "0.0.0.0:10250")
	listenOn(t, "tcp4", "127.0.0.1:10248")
	dual, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(dual) })
	must(t, unix.SetsockoptInt(dual, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0))
	must(t, unix.Bind(dual, &unix.SockaddrInet6{Port: 10255}))
	must(t, unix.Listen(dual, 1))
	listenOn(t, "tcp4", "192.0.2.1:10257")
	listenOn(t, "udp4", "0.0.0.0:10250")
	unbound := clientPort(t)
	for _, v := range []struct{ name, mapping, listener string }{
		{"all addresses", `{"hostPort":10250,"containerPort":80}`, "0.0.0.0:10250"},
		{"one address", `{"hostPort":10250,"containerPort":80,"hostIP":"192.0.2.1"}`, "0.0.0.0:10250"},
		{"UDP", `{"hostPort":10250,"containerPort":80,"protocol":"udp"}`, "0.0.0.0:10250"},
		{"a range", `{"hostPort":10249,"containerPort":10249,"range":3}`, "0.0.0.0:10250"},
		{"the loopback address itself", `{"hostPort":10248,"containerPort":80,"hostIP":"127.0.0.1"}`, "127.0.0.1:10248"},
		{"both families", `{"hostPort":10255,"containerPort":80,"hostIP":"127.0.0.1"}`, "[::]:10255"},
		{"IPv6", `{"hostPort":10255,"containerPort":80,"hostIP":"::"}`, "[::]:10255"},
		{"the listener's address", `{"hostPort":10257,"containerPort":80,"hostIP":"192.0.2.1"}`, "192.0.2.1:10257"},
		{"loopback", `{"hostPort":10248,"containerPort":80}`, ""},
		{"another address", `{"hostPort":10248,"containerPort":80,"hostIP":"192.0.2.1"}`, ""},
		{"another family", `{"hostPort":10248,"containerPort":80,"hostIP":"::"}`, ""},
		{"another protocol", `{"hostPort":10248,"containerPort":80,"protocol":"udp"}`, ""},
		{"beside", `{"hostPort":10251,"containerPort":80,"range":4}`, ""},
		{"a client", fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"udp"}`, unbound), ""},
		{"a client in a range", fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"udp","range":3}`, unbound-1), ""},
	} {
		keys := []string{`"backend":"nftables"`, `"refuseListeners":true`, `"refuseListeners":false`}
		if v.name != "all addresses" && v.name != "loopback" {
			keys = keys[:1]
		}
		for _, keys := range keys {
			for _, isPod := range []bool{true, false} {
				call := a.plugin("ADD", conf(v.mapping, keys))
				if isPod {
					call = asPod(call)
				}
				answer := w.Run(call)
				name := fmt.Sprintf("%s, %s, pod %t", v.name, keys, isPod)
				refuses := v.listener != "" && (strings.HasSuffix(keys, "true") || isPod && !strings.HasSuffix(keys, "false"))
				wantAnswer(t, name, answer, refuses, v.listener)
				if !refuses {
					w.OK(a.plugin("CHECK", conf(v.mapping, keys)))
					w.OK(a.plugin("DEL", conf(v.mapping)))
				}
				if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
					t.Fatalf("%s: left\n%s", name, have)
				}
			}
		}
	}
	a.publish(conf(web))
	listenOn(t, "tcp4", "0.0.0.0:8080") // it gets no connection, but the container's ports stay checkable and repeatable
	w.OK(a.plugin("CHECK", conf(web)))
}

// TestListenerInMulti: multi attaches pods, also if CNI_ARGS name none.
func TestListenerInMulti(t *testing.T) {
	w := newTown(t)
	listenOn(t, "tcp4", "0.0.0.0:10250")
	ns := netopstest.New(t)
	for _, chained := range []string{`{"type":"portmap","capabilities":{"portMappings":true}}`, `{"type":"chain","plugins":[` + bridge + `,{"type":"portmap","capabilities":{"portMappings":true}}]}`} {
		plugins := chained
		if !strings.Contains(chained, "chain") {
			plugins = bridge + "," + chained
		}
		call := rolestest.Call{Type: "multi", Verb: "ADD", ID: "m", Netns: ns.Path(), IfName: "eth0", Conf: `{"cniVersion":"1.0.0","name":"m","type":"multi",
			"runtimeConfig":{"portMappings":[{"hostPort":10250,"containerPort":80}]},"delegates":[{"cniVersion":"1.0.0","name":"ports","plugins":[` + plugins + `]}]}`}
		wantAnswer(t, chained, w.Run(call), true, "0.0.0.0:10250")
	}
}

// wantAnswer compares the answer of an ADD that refuses a listener of this process, or else logs it.
func wantAnswer(t *testing.T, name string, have rolestest.Answer, refuses bool, listener string) {
	t.Helper()
	process := fmt.Sprintf("process %d (", os.Getpid())
	switch {
	case refuses:
		if !strings.Contains(have.Stdout, `"code": 112`) || !strings.Contains(have.Stdout, "by "+process) || !strings.Contains(have.Stdout, "listens on "+listener) {
			t.Errorf("%s: %s, want the names of %s and %s", name, have.Stdout, process, listener)
		}
	case have.Code != 0:
		t.Errorf("%s: %s", name, have.Stdout)
	case (listener != "") != strings.Contains(have.Stderr, process) || !strings.Contains(have.Stderr, listener):
		t.Errorf("%s: the log is %q, want %q", name, have.Stderr, listener)
	}
}

// clientPort returns the port of a UDP socket that sent a packet and did not bind.
func clientPort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.Sendto(fd, []byte("q"), 0, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 2}, Port: 53}))
	name, err := unix.Getsockname(fd)
	must(t, err)
	return name.(*unix.SockaddrInet4).Port //nolint:forcetypeassert // the socket's family
}

// TestStub: stub resolvers listen at loopback addresses of the node. They keep their connections, and the container gets those to all
// other addresses, also after its elements were restored.
func TestStub(t *testing.T) {
	w := newTown(t)
	stub := &pod{w: w, id: "stub"}
	for _, at := range []string{"127.0.0.53", "127.0.0.54", "::1"} {
		for _, port := range []string{"53", "80"} {
			streams, err := net.Listen("tcp", net.JoinHostPort(at, port))
			must(t, err)
			packets, err := net.ListenPacket("udp", net.JoinHostPort(at, port))
			must(t, err)
			t.Cleanup(func() { _ = streams.Close(); _ = packets.Close() })
			go stub.answerStreams(streams)
			go stub.answerPackets(packets.(*net.UDPConn)) //nolint:forcetypeassert // of network udp
		}
	}
	a := w.run("a")
	for i, v := range []struct {
		name, mapping string
		port          int
		keys          []string
	}{
		{"single ports", `{"hostPort":53,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":80,"protocol":"udp"}`, 53, nil},
		{"conditions", `{"hostPort":53,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":80,"protocol":"udp"}`, 53, []string{`"conditionsV4":["! -s 198.51.100.0/24"]`}},
		{"ranges", `{"hostPort":79,"containerPort":79,"protocol":"tcp","range":3},{"hostPort":79,"containerPort":79,"protocol":"udp","range":3}`, 80, nil},
	} {
		w.OK(asPod(a.plugin("ADD", conf(v.mapping, v.keys...))))
		for _, when := range []string{"", "restored"} {
			if when != "" {
				run(t, "nft", "flush", "ruleset")
				w.attached(fmt.Sprintf("b%d", i)) // its ADD restores them
			}
			for _, network := range []string{"tcp", "udp"} {
				w.wants("stub 127.0.0.1", nil, network, "127.0.0.1", "127.0.0.53", v.port)
				w.wants("stub 127.0.0.1", nil, network, "127.0.0.1", "127.0.0.54", v.port)
				w.wants("stub ::1", nil, network, "", "::1", v.port)
				w.wants("a 10.1.0.1", nil, network, "", "127.0.0.1", v.port)
				w.wants("a 192.0.2.1", nil, network, "", "192.0.2.1", v.port)
				w.wants("a 192.0.2.2", w.outside, network, "192.0.2.2", "192.0.2.1", v.port)
				w.wants("a 2001:db8::2", w.outside, network, "2001:db8::2", "2001:db8::1", v.port)
			}
		}
		w.OK(asPod(a.plugin("CHECK", conf(v.mapping, v.keys...))))
		w.OK(asPod(a.plugin("DEL", conf(v.mapping, v.keys...))))
		if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
			t.Fatalf("%s: left\n%s", v.name, have)
		}
	}
}

// TestListenerOfOneAddress: a process of the node listens at one address, such as libvirt's DNS server at that of its bridge. It keeps its connections,
// and a pod gets those to the other addresses. Another container gets all, as with the reference plugin. A socket at a multicast address is
// none: a mapping is for the node's own addresses.
func TestListenerOfOneAddress(t *testing.T) {
	w := newTown(t)
	w.Extra = append(w.Extra, "CNIBOX_LOG=warn")
	w.ip("addr add 192.0.2.5/24 dev out0")
	server := &pod{w: w, id: "server"}
	streams, err := net.Listen("tcp", "192.0.2.5:53")
	must(t, err)
	packets, err := net.ListenPacket("udp", "192.0.2.5:53")
	must(t, err)
	t.Cleanup(func() { _ = streams.Close(); _ = packets.Close() })
	go server.answerStreams(streams)
	go server.answerPackets(packets.(*net.UDPConn)) //nolint:forcetypeassert // of network udp
	multicast, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(multicast) })
	must(t, unix.Bind(multicast, &unix.SockaddrInet4{Addr: [4]byte{239, 255, 255, 250}, Port: 79}))
	a := w.run("a")
	for _, mapping := range []string{
		`{"hostPort":53,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":80,"protocol":"udp"}`,
		`{"hostPort":53,"containerPort":53,"protocol":"tcp","range":28},{"hostPort":53,"containerPort":53,"protocol":"udp","range":28}`,
	} {
		for _, v := range []struct {
			key, gets, logs string
			isPod           bool
		}{
			{`"backend":"nftables"`, "server", "keeps", true},
			{`"refuseListeners":true`, "server", "keeps", false},
			{`"refuseListeners":false`, "a", "gets", true},
			{`"backend":"nftables"`, "a", "gets", false},
		} {
			call := a.plugin("ADD", conf(mapping, v.key))
			if v.isPod {
				call = asPod(call)
			}
			log := w.OK(call).Stderr
			if strings.Count(log, "level=WARN") != 2 || !strings.Contains(log, v.logs+" the connections") || !strings.Contains(log, fmt.Sprintf("process %d (", os.Getpid())) {
				t.Errorf("%s, pod %t: the log is %q", v.key, v.isPod, log)
			}
			for _, network := range []string{"tcp", "udp"} {
				isRange := strings.Contains(mapping, "range") // the container's server has another port
				if !isRange || v.gets == "server" {
					w.wants(v.gets+" 192.0.2.2", w.outside, network, "192.0.2.2", "192.0.2.5", 53)
				}
				if !isRange {
					w.wants("a 192.0.2.2", w.outside, network, "192.0.2.2", "192.0.2.1", 53)
				}
			}
			w.OK(a.plugin("CHECK", conf(mapping, v.key)))
			w.OK(a.plugin("DEL", conf(mapping, v.key)))
			if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
				t.Fatalf("left\n%s", have)
			}
		}
	}
	// DEL without a record, after the process has ended.
	w.OK(asPod(a.plugin("ADD", conf(`{"hostPort":53,"containerPort":80}`))))
	w.Forget()
	must(t, streams.Close())
	w.OK(a.plugin("DEL", conf(`{"hostPort":53,"containerPort":80}`)))
	if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
		t.Fatalf("left\n%s", have)
	}
}

// TestReservedPort: a runtime keeps the ports of its container with sockets that accept no connection. podman's are of conmon, whose
// arguments have the container's ID, and nerdctl's of a process that sleeps, whose number a file has. Such a process is not a listener for this
// container. Another file, or another process, makes no difference.
func TestReservedPort(t *testing.T) {
	w := newTown(t)
	w.Extra = append(w.Extra, "CNIBOX_LOG=warn")
	l, err := net.Listen("tcp4", "0.0.0.0:8080")
	must(t, err)
	file, err := l.(*net.TCPListener).File()
	must(t, err)
	must(t, l.Close())
	keep := func(args ...string) int {
		c := exec.Command(args[0], args[1:]...)
		c.ExtraFiles = []*os.File{file}
		stdin, err := c.StdinPipe()
		must(t, err)
		must(t, c.Start())
		t.Cleanup(func() { _ = stdin.Close(); _ = c.Process.Kill(); _ = c.Wait() })
		return c.Process.Pid
	}
	const reserver = nerdctlDir + "/k8s.io/a1/port-reserver.pid"
	must(t, os.MkdirAll(filepath.Dir(reserver), 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(nerdctlDir) })
	write := func(text string) func() {
		return func() { must(t, os.WriteFile(reserver, []byte(text), 0o644)) } //nolint:gosec // nerdctl's mode
	}
	keep("sh", "-c", "read line", "reserved")
	sleeper := strconv.Itoa(keep("sleep", "infinity"))
	must(t, file.Close())
	refused := w.run("k8s.io-a1")
	for _, v := range []struct {
		name string
		file func()
	}{
		{"no file", func() {}},
		{"no number", write("x")},
		{"too long", write(strings.Repeat("0", 30) + sleeper)},
		{"another process", write("1")},
		{"a process that does not sleep", write(strconv.Itoa(os.Getpid()))},
		{"a file of others", func() { write(sleeper)(); must(t, os.Chmod(reserver, 0o666)) }},
		{"a link outside", func() {
			must(t, os.Remove(reserver))
			must(t, os.WriteFile("/run/reserver", []byte(sleeper), 0o600))
			must(t, os.Symlink("../../../reserver", reserver))
		}},
		{"a pipe", func() { must(t, os.Remove(reserver)); must(t, unix.Mkfifo(reserver, 0o644)) }},
	} {
		v.file()
		if answer := w.Run(asPod(refused.plugin("ADD", conf(web)))); !strings.Contains(answer.Stdout, "listens on 0.0.0.0:8080") {
			t.Errorf("%s: %s", v.name, answer.Stdout)
		}
	}
	must(t, os.Remove(reserver))
	write(sleeper)()
	for _, p := range []*pod{w.run("reserved"), refused} {
		answer := w.OK(asPod(p.plugin("ADD", conf(web))))
		if answer.Stderr != "" {
			t.Errorf("%s: the log has %s", p.id, answer.Stderr)
		}
		w.wants(p.id+" 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
		w.OK(p.plugin("DEL", conf(web)))
	}
}

// TestNodePort: a container does not get a port that kube-proxy translates.
func TestNodePort(t *testing.T) {
	const rule = "-A KUBE-NODEPORTS -p tcp -m comment --comment default/web -m tcp --dport 30080 -j KUBE-EXT-A"
	for name, lines := range map[string][]string{
		"nftables": {
			"nft add table ip kube-proxy", "nft add chain ip kube-proxy external-a",
			"nft add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }",
			"nft add element ip kube-proxy service-nodeports { tcp . 30080 : goto external-a }",
		},
		"iptables":        {"iptables-nft -t nat -N KUBE-NODEPORTS", "iptables-nft -t nat -N KUBE-EXT-A", "iptables-nft -t nat " + rule},
		"iptables-legacy": {"iptables-legacy -t nat -N KUBE-NODEPORTS", "iptables-legacy -t nat -N KUBE-EXT-A", "iptables-legacy -t nat " + rule},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			for _, line := range lines {
				words := strings.Fields(line)
				run(t, words[0], words[1:]...)
			}
			t.Cleanup(func() {
				run(t, "nft", "flush", "ruleset")
				run(t, "iptables-legacy", "-t", "nat", "-F")
				run(t, "iptables-legacy", "-t", "nat", "-X")
			})
			a := w.run("a")
			for port, free := range map[int]bool{30080: false, 30081: true} {
				answer := w.Run(a.plugin("ADD", conf(`{"hostPort":`+strconv.Itoa(port)+`,"containerPort":80}`)))
				taken := strings.Contains(answer.Stdout, `"code": 112`) && strings.Contains(answer.Stdout, "port 30080/tcp") && strings.Contains(answer.Stdout, "NodePort")
				if taken == free || free && answer.Code != 0 {
					t.Errorf("port %d: %s", port, answer.Stdout)
				}
			}
			w.OK(a.plugin("DEL", conf(`{"hostPort":30081,"containerPort":80}`)))
		})
	}
}
