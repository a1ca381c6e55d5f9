package dhcp_test

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestClientKilled: a call for an attachment that has addresses, such as the CHECK of the reference's
// plugin, is killed before it reads the answer. The container keeps its addresses.
func TestClientKilled(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, "")
	r := result(t, e.OK(call("ADD", ns, c)))
	for range 20 {
		allocateUnread(t, e, ns, c)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	d.await(t, "msg=released", 1) // and all output before it
	if n := strings.Count(d.said(), "msg=leased"); n != 1 {
		t.Errorf("%d addresses were requested, want that of ADD", n)
	}
}

// allocateUnread sends Allocate on a connection that cannot be answered, and waits for the call's end.
func allocateUnread(t *testing.T, e *rolestest.Env, ns *netopstest.NS, conf string) {
	t.Helper()
	c, err := net.Dial("unix", socketOf(e))
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "CONNECT /_goRPC_ HTTP/1.0\n\n")
	must(t, err)
	r := bufio.NewReader(c)
	for line := "not yet"; strings.TrimSpace(line) != ""; {
		line, err = r.ReadString('\n')
		must(t, err)
	}
	must(t, c.(*net.UnixConn).CloseRead()) // from now on the daemon's writes fail
	// One write, because the daemon may end the connection after the first message.
	var request bytes.Buffer
	out := gob.NewEncoder(&request)
	must(t, out.Encode(struct {
		ServiceMethod string
		Seq           uint64
	}{"DHCP.Allocate", 1}))
	must(t, out.Encode(struct {
		ContainerID, Netns, IfName string
		StdinData                  []byte
	}{"c1", ns.Path(), "eth0", []byte(conf)}))
	_, err = c.Write(request.Bytes())
	must(t, err)
	e.OK(direct("ADD", ns, conf)) // the daemon handles it after the call
}
