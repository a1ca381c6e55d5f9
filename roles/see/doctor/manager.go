package doctor

import (
	"os"
	"slices"

	"github.com/cnibox/cnibox/roles/see/check"
)

// configure returns the command that gives an interface its addresses and routes again.
func (f *Facts) configure(link string) string {
	command, err := check.Configure(f.Host, link)
	f.unread("the program that manages "+link, err)
	return command
}

const (
	agentUnit   = "cnibox-agent"
	restartUnit = "systemctl restart " + agentUnit
	// restartFlannel restarts flannel's agent.
	restartFlannel = "systemctl restart flanneld"
)

// TunnelFix returns what makes the objects of a tunnel again, or "" if it is not known who made them. isManaged means that an agent does.
func TunnelFix(isManaged bool, node string) string {
	switch {
	case isManaged:
		return AgentFix(node)
	case len(readSubnetEnv()) > 0:
		return restartFlannel
	}
	return ""
}

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
