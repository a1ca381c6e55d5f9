package agent

import (
	"net"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// notifySystemd informs the service manager that the agent is ready (sd_notify(3)).
func notifySystemd(h *roles.Host) {
	path := process.Getenv(h.Env, "NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte("READY=1"))
		_ = c.Close()
	}
	if err != nil {
		h.Log.Debug("cannot notify the service manager", "error", err)
	}
}
