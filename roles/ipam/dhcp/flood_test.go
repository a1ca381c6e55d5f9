package dhcp_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestFlood: more connections than the daemon can have open, which send nothing or invalid data, do
// not end the daemon.
func TestFlood(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	plugin := e.Cmd(rolestest.Call{Type: "dhcp"})
	cmd := exec.Command("sh", "-c", `ulimit -n 32 && exec "$0" daemon -socketpath "$1"`, plugin.Path, socketOf(e))
	cmd.Env = append(plugin.Env, "CNIBOX_LOG=info")
	d := start(t, nil, cmd)
	d.await(t, "listening", 1)
	const connected = "CONNECT /_goRPC_ HTTP/1.0\n\n"
	var open []net.Conn
	for i := range 200 {
		c, err := net.Dial("unix", socketOf(e))
		must(t, err)
		defer c.Close()
		open = append(open, c)
		say := []string{"", "CONN", connected, connected + "\xf8\xff\xff\xff\xff\xff\xff\xff\xff", connected + "\xfd\x0f\xff\xff", connected + "\x00", "GET / HTTP/1.0\n\n"}[i%7]
		_, _ = c.Write([]byte(say)) // it may have hung up
	}
	d.await(t, "too many open files", 1)
	for _, c := range open {
		_ = c.Close()
	}
	e.OK(rolestest.Call{Type: "dhcp", Verb: "STATUS", Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","ipam":{"daemonSocketPath":%q}}`, socketOf(e))})
	d.stop(t)
}
