package doctor

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
)

// reconfigured returns, by interface, the command by which the program that manages it gives it its addresses and routes again.
// netplan leaves that to one of these programs.
func reconfigured(links []netops.LinkInfo) map[string]string {
	commands := map[string]string{}
	by := func(dir, command string, file func(l *netops.LinkInfo) string, manages func(l *netops.LinkInfo, line string) bool) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return // the program does not run
		}
		defer root.Close()
		const most = 1 << 16
		for i := range links {
			l := &links[i]
			text, err := smallfile.ReadTrusted(root, file(l), most)
			if err == nil && slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool { return manages(l, line) }) {
				commands[l.Name] = strings.ReplaceAll(command, "LINK", l.Name)
			}
		}
	}
	index := func(l *netops.LinkInfo) string { return strconv.Itoa(l.Index) }
	by("/run/network", "ifdown --force LINK; ifup LINK", func(*netops.LinkInfo) string { return "ifstate" }, func(l *netops.LinkInfo, line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return name == l.Name
	})
	by("/run/systemd/netif/links", "networkctl reconfigure LINK", index, func(_ *netops.LinkInfo, line string) bool {
		return slices.Contains([]string{"ADMIN_STATE=configured", "ADMIN_STATE=configuring", "ADMIN_STATE=failed"}, line)
	})
	by("/run/NetworkManager/devices", "nmcli device reapply LINK", index, func(_ *netops.LinkInfo, line string) bool { return line == "managed=true" })
	return commands
}

// configure returns the command that gives an interface its addresses and routes again.
func (f *Facts) configure(link string) string {
	return cmp.Or(f.Reconfigured[link], "configure "+link+" again, as at the start of the node")
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
