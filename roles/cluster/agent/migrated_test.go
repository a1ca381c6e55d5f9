package agent_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/command"
)

// useReference installs the reference plugins in place of cnibox's, and a file with the name of flannel's plugin, which is not a Go
// module that can be built here. attachReference does what it does.
func (n *node) useReference() {
	t := n.w.t
	t.Helper()
	must(t, os.RemoveAll(n.PluginDir()))
	must(t, os.MkdirAll(n.PluginDir(), 0o700))
	for _, p := range []string{"bridge", "host-local", "loopback", "portmap"} {
		must(t, exec.Command("cp", filepath.Join("../../../bin/peers", p), n.PluginDir()).Run())
	}
	must(t, os.WriteFile(filepath.Join(n.PluginDir(), "flannel"), []byte("#!/bin/sh\nexit 1\n"), 0o700))
	must(t, os.MkdirAll(n.confDir(), 0o700))
	must(t, os.WriteFile(filepath.Join(n.confDir(), "10-flannel.conflist"), []byte(n.flannelList()), 0o600))
	// The command line reads the runtime's cache here, too.
	must(t, os.MkdirAll(filepath.Join(n.RunDir(), "cli"), 0o700))
	must(t, os.Symlink(n.CacheDir(), filepath.Join(n.RunDir(), "cli", "results")))
}

// migrate returns the arguments of a migration of this node.
func (n *node) migrate(args ...string) []string {
	return append(args, "--dir", n.PluginDir(), "--conf-dir", n.confDir())
}

func (n *node) confDir() string { return filepath.Join(n.Dir(), "net.d") }

func (n *node) flannelConf() string {
	return fmt.Sprintf(`"type":"flannel","subnetFile":%q,"dataDir":%q,"delegate":{"hairpinMode":true},"ipam":{"dataDir":%q}`, n.subnetFile(), n.Dir()+"/flannel-data", n.Dir()+"/networks")
}

func (n *node) flannelList() string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","plugins":[{%s}]}`, n.flannelConf())
}

// attachInstalled attaches a pod with cnibox's flannel, as a runtime does.
func (n *node) attachInstalled() *pod {
	n.w.t.Helper()
	return n.attachBy("flannel", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0",%s}`, n.flannelConf()))
}

// attachReference attaches a pod with the reference's bridge and host-local, the configuration that flannel's plugin makes for
// them, and the file that it keeps for DEL.
func (n *node) attachReference() *pod {
	t := n.w.t
	t.Helper()
	raw, err := os.ReadFile(n.subnetFile())
	must(t, err)
	env := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[key] = value
	}
	subnet := strings.Replace(env["FLANNEL_SUBNET"], ".1/", ".0/", 1)
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","mtu":%s,"isGateway":true,"ipMasq":false,"hairpinMode":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":%q}],"dataDir":%q}}`, env["FLANNEL_MTU"], subnet, env["FLANNEL_NETWORK"], n.Dir()+"/networks")
	p := n.attachBy("bridge", conf)
	must(t, os.MkdirAll(n.Dir()+"/flannel-data", 0o700))
	must(t, os.WriteFile(filepath.Join(n.Dir(), "flannel-data", p.call.ID), []byte(conf), 0o600))
	call := p.call
	call.Conf = n.flannelList()
	n.Cache(call, p.result)
	return p
}

// command runs a command line on the node and returns its output, with the exit code if it is not 0.
func (n *node) command(args ...string) string {
	n.w.t.Helper()
	cmd := command.Cmd(n.Env, args...)
	cmd.Env = append(cmd.Env, "PATH=/usr/sbin") // without runtimes, whose configuration would be written
	var out []byte
	var exit *exec.ExitError
	n.ns.Do(n.w.t, func() (err error) {
		out, err = cmd.CombinedOutput()
		if errors.As(err, &exit) {
			return nil
		}
		return err
	})
	if exit != nil {
		return fmt.Sprintf("%s[exit code %d]\n", out, exit.ExitCode())
	}
	return string(out)
}

// rules returns the node's packet filter rules.
func (n *node) rules() string { return n.exec("nft", "-s", "list", "ruleset") }
