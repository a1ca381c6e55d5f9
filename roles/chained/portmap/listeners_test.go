package portmap_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ofAttachment finds elements of an attachment.
var ofAttachment = regexp.MustCompile(`comment "cnibox:[0-9a-f]`)

// TestListener: a container does not get a port at which a process of the node listens.
// The error names the process. Ports of other addresses and protocols are free, and
// so is a socket that the runtime holds for the container.
func TestListener(t *testing.T) {
	w := newTown(t)
	a := w.run("a")
	listen := func(network, address string) {
		t.Helper()
		var l io.Closer
		var err error
		if network == "udp" {
			l, err = net.ListenPacket("udp4", address)
		} else {
			l, err = net.Listen(network, address)
		}
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	listen("tcp4", "0.0.0.0:10250")
	listen("tcp4", "127.0.0.1:10248")
	dual, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(dual) })
	must(t, unix.SetsockoptInt(dual, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0))
	must(t, unix.Bind(dual, &unix.SockaddrInet6{Port: 10255}))
	must(t, unix.Listen(dual, 1))
	listen("tcp4", "192.0.2.1:10257")
	listen("udp", "0.0.0.0:10250")
	for _, v := range []struct{ name, mapping, listener string }{
		{"all addresses", `{"hostPort":10250,"containerPort":80}`, "0.0.0.0:10250"},
		{"one address", `{"hostPort":10250,"containerPort":80,"hostIP":"192.0.2.1"}`, "0.0.0.0:10250"},
		{"UDP", `{"hostPort":10250,"containerPort":80,"protocol":"udp"}`, "0.0.0.0:10250"},
		{"a range", `{"hostPort":10249,"containerPort":10249,"range":3}`, "0.0.0.0:10250"},
		{"loopback", `{"hostPort":10248,"containerPort":80}`, "127.0.0.1:10248"},
		{"both families", `{"hostPort":10255,"containerPort":80,"hostIP":"127.0.0.1"}`, "[::]:10255"},
		{"IPv6", `{"hostPort":10255,"containerPort":80,"hostIP":"::"}`, "[::]:10255"},
		{"the listener's address", `{"hostPort":10257,"containerPort":80,"hostIP":"192.0.2.1"}`, "192.0.2.1:10257"},
		{"another address", `{"hostPort":10248,"containerPort":80,"hostIP":"192.0.2.1"}`, ""},
		{"another family", `{"hostPort":10248,"containerPort":80,"hostIP":"::"}`, ""},
		{"another protocol", `{"hostPort":10248,"containerPort":80,"protocol":"udp"}`, ""},
		{"beside", `{"hostPort":10251,"containerPort":80,"range":4}`, ""},
	} {
		answer := w.Run(a.plugin("ADD", conf(v.mapping)))
		if v.listener == "" {
			if answer.Code != 0 {
				t.Errorf("%s: %s", v.name, answer.Stdout)
			}
			w.OK(a.plugin("CHECK", conf(v.mapping)))
			w.OK(a.plugin("DEL", conf(v.mapping)))
			continue
		}
		want := fmt.Sprintf("by process %d (", os.Getpid())
		if !strings.Contains(answer.Stdout, `"code": 112`) || !strings.Contains(answer.Stdout, want) || !strings.Contains(answer.Stdout, "listens on "+v.listener) {
			t.Errorf("%s: %s, want %q and %q", v.name, answer.Stdout, want, v.listener)
		}
		if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
			t.Fatalf("%s: the refused ADD left\n%s", v.name, have)
		}
	}
	a.publish(conf(web))
	listen("tcp4", "0.0.0.0:8080") // it gets no connection, but the container's ports stay checkable and repeatable
	w.OK(a.plugin("CHECK", conf(web)))
}

// TestReservedPort: podman's conmon holds the sockets of its container's ports. Its
// arguments have the container's ID.
func TestReservedPort(t *testing.T) {
	w := newTown(t)
	l, err := net.Listen("tcp4", "0.0.0.0:8080")
	must(t, err)
	file, err := l.(*net.TCPListener).File()
	must(t, err)
	must(t, l.Close())
	conmon := exec.Command("sh", "-c", "read line", "reserved")
	conmon.ExtraFiles = []*os.File{file}
	stdin, err := conmon.StdinPipe()
	must(t, err)
	must(t, conmon.Start())
	must(t, file.Close())
	t.Cleanup(func() { _ = stdin.Close(); _ = conmon.Wait() })
	other := w.run("other").plugin("ADD", conf(web))
	if answer := w.Run(other); answer.Code == 0 || !strings.Contains(answer.Stdout, "listens on 0.0.0.0:8080") {
		t.Errorf("another container: %s", answer.Stdout)
	}
	w.run("reserved").publish(conf(web))
	w.wants("reserved 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
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
