package doctor

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
)

// managed returns the interfaces that NetworkManager configures.
func managed(links []netops.LinkInfo) (names []string) {
	dir, err := os.OpenRoot("/run/NetworkManager/devices")
	if err != nil {
		return nil // it does not run
	}
	defer dir.Close()
	const most = 1 << 16
	for _, l := range links {
		if text, err := smallfile.ReadTrusted(dir, strconv.Itoa(l.Index), most); err == nil && slices.Contains(strings.Split(string(text), "\n"), "managed=true") {
			names = append(names, l.Name)
		}
	}
	return names
}

// configure returns the command that gives an interface its addresses and routes again.
func (f *Facts) configure(link string) string {
	if slices.Contains(f.Managed, link) {
		return "nmcli device reapply " + link
	}
	return "networkctl reconfigure " + link
}

const (
	agentUnit   = "cnibox-agent"
	restartUnit = "systemctl restart " + agentUnit
)

// AgentFix returns the command that starts a node's agent again: its unit, or its pod on a node with a kubelet and without a unit.
func AgentFix(node string) string {
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	hasUnit := slices.ContainsFunc([]string{"/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"}, func(dir string) bool {
		return exists(dir + "/systemd/system/" + agentUnit + ".service")
	})
	if hasUnit || !exists("/var/lib/kubelet") {
		return restartUnit
	}
	return "kubectl -n kube-system delete pod -l app.kubernetes.io/name=cnibox --field-selector spec.nodeName=" + node
}
