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

// TestDeafClient: a call for an attachment that has its addresses, such as the
// CHECK of the reference's plugin, is killed before it hears the answer. The
// container lives on and keeps them.
func TestDeafClient(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, "")
	r := result(t, e.OK(call("ADD", ns, c)))
	for range 20 {
		askDeaf(t, e, ns, c)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	d.await(t, "msg=released", 1) // and all that was said before
	if n := strings.Count(d.said(), "msg=leased"); n != 1 {
		t.Errorf("%d addresses were asked for, want that of ADD", n)
	}
}

// askDeaf sends Allocate and is done when the daemon could not answer it.
func askDeaf(t *testing.T, e *rolestest.Env, ns *netopstest.NS, conf string) {
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
	// In one go: once the daemon has a message it may end the connection.
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
	e.OK(direct("ADD", ns, conf)) // has its turn after the call
}
