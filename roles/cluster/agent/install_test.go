package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// installed is what an agent installs in a test.
type installed struct {
	n         *node
	bin, conf string
	flags     []string
}

const conflist = `{"cniVersion":"1.0.0","name":"overlay","plugins":[{"type":"vxlan"}]}`

// newInstalled returns directories in which another program's plugin is already.
func newInstalled(n *node) *installed {
	n.w.t.Helper()
	i := &installed{n: n, bin: filepath.Join(n.Dir(), "opt"), conf: filepath.Join(n.Dir(), "net.d")}
	must(n.w.t, os.MkdirAll(i.bin, 0o755))
	must(n.w.t, os.WriteFile(filepath.Join(i.bin, "bridge"), []byte("#!/bin/sh\n"), 0o755))
	must(n.w.t, os.WriteFile(filepath.Join(i.bin, "other"), []byte("#!/bin/sh\n"), 0o755))
	source := filepath.Join(n.Dir(), "10-cnibox.conflist")
	must(n.w.t, os.WriteFile(source, []byte(conflist), 0o600))
	i.flags = []string{"-cni-bin-dir=" + i.bin, "-cni-plugins=vxlan,bridge,host-local", "-cni-conf=" + source, "-cni-conf-dir=" + i.conf, "-healthz-port=8081", "-healthz-ip=127.0.0.1"}
	return i
}

// list returns the files with the targets of links, without temporary files.
func (i *installed) list() (files []string) {
	for _, dir := range []string{i.bin, i.conf} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			target, _ := os.Readlink(filepath.Join(dir, e.Name()))
			if target != "" {
				target = "=" + target
			}
			if !strings.HasPrefix(e.Name(), ".cnibox-") || e.IsDir() {
				files = append(files, e.Name()+target)
			}
		}
	}
	return files
}

func (i *installed) until(want ...string) {
	i.n.w.t.Helper()
	i.n.w.within(func() bool { return slices.Equal(i.list(), want) }, func() string { return fmt.Sprintf("%q, want %q", i.list(), want) })
}

// TestInstall: the plugins and the network appear when pods can be attached, and come back when another
// program deletes or replaces them. Stopping the agent keeps them. With -uninstall the agent waits until
// no pod is attached and then removes everything, but no other program's files.
func TestInstall(t *testing.T) {
	w := newWorld(t, 1, `{"Network":"10.244.0.0/16","Backend":{"Type":"none"}}`)
	n := w.nodes[0]
	n.exec("sysctl", "-qw", "net.ipv4.ip_forward=1")
	before := n.snapshot()
	i := newInstalled(n)
	policies := filepath.Join(n.Dir(), "policy.d")
	must(t, os.Mkdir(policies, 0o700))
	must(t, os.WriteFile(filepath.Join(policies, "all.yaml"), []byte(allIsolated), 0o600))
	i.flags = append(i.flags, "-policy", "-policy-dir="+policies)
	n.launch(i.flags...)
	w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status" })
	n.until("a fault", func(a answer) bool { return !a.Ready && strings.Contains(a.Reason, "none") })
	i.until("bridge", "other") // nothing is placed on a node that is not ready
	all := []string{".cnibox-replaced", "bridge=cnibox", "cnibox", "host-local=cnibox", "other", "vxlan=cnibox", "10-cnibox.conflist"}
	w.configure(vxlan)
	i.until(all...)
	for _, path := range []string{filepath.Join(i.bin, "vxlan"), filepath.Join(i.bin, "cnibox"), filepath.Join(i.conf, "10-cnibox.conflist"), i.conf} {
		must(t, os.RemoveAll(path))
		i.until(all...)
	}
	must(t, os.WriteFile(filepath.Join(i.conf, "new"), []byte("{}"), 0o600))
	must(t, os.Rename(filepath.Join(i.conf, "new"), filepath.Join(i.conf, "10-cnibox.conflist")))
	w.within(func() bool {
		b, _ := os.ReadFile(filepath.Join(i.conf, "10-cnibox.conflist"))
		return string(b) == conflist
	}, func() string { return "the network does not come back" })
	n.until("rest", func(a answer) bool { return a.Ready })
	if linked := strings.Count(n.log.String(), "installation: linked"); linked != 4 {
		t.Errorf("%d links were made, want three and one again", linked)
	}
	p := n.attach()
	n.stop()
	i.until(all...)

	n.launch(append(i.flags, "-uninstall")...)
	w.within(func() bool {
		return strings.Contains(n.log.String(), "pods are still attached: drain the node: 1 by cnibox")
	}, func() string { return n.log.String() })
	if code, body := n.get("/readyz"); code != 503 || !strings.Contains(body, "drain the node") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	i.until(all...)
	n.detach(p)
	i.until("bridge", "other")
	w.within(func() bool { code, _ := n.get("/readyz"); return code == 200 }, func() string { return n.log.String() })
	if after := n.snapshot(); after != before {
		t.Errorf("left is\n%s\nwhere was\n%s", after, before)
	}
	for _, path := range []string{n.overlayFile(), n.subnetFile(), n.socket(), w.path(n.name), enforce.SavedPath(n.host().Store), enforce.KeptPath(n.host().Store)} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if on, err := enforce.Marked(t.Context(), n.host().Store); on || err != nil {
		t.Errorf("the node still enforces network policies: %v, %v", on, err)
	}
}
