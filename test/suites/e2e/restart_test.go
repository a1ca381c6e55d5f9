package e2e

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// thirdParty is a plugin that changes nothing. libcni sorts the keys of its configuration.
const thirdParty = `#!/bin/sh
case $CNI_COMMAND in
ADD) sed -n 's/.*"prevResult":\(.*\),"type":"third-party".*/\1/p' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
esac
`

// TestContainerdRestart: while a third-party plugin of the list is missing, DEL fails, and neither that nor the restart of a killed
// containerd makes a living pod's attachment count as dead. The repeated DEL removes it. When a pod's namespace was removed without
// DEL, its attachment is dead.
func TestContainerdRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	if otherPlugins() != "" {
		t.Skip("only cnibox has a state")
	}
	h := newHost(t)
	h.writeConf(t)
	list := filepath.Join(h.conf, "10-"+network+".conflist")
	raw, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	end := strings.LastIndex(string(raw), "]")
	writeFile(t, list, string(raw[:end])+`,{"type":"third-party"}`+string(raw[end:]))
	plugin := filepath.Join(h.bin, "third-party")
	install := func() {
		t.Helper()
		writeFile(t, plugin, thirdParty)
		if err := os.Chmod(plugin, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	install()
	cripods := h.startContainerd(t)
	var pods []pod
	decode(t, h.run(t, cripods, "-socket", containerdSocket, "run", "-n", "2", "-cgroup", h.cgroup), &pods)
	wantDistinct(t, pods, 2, netip.MustParsePrefix(subnet))
	want := func(n int) {
		t.Helper()
		h.run(t, filepath.Join(root(t), "bin/cnibox"), "state", "reap")
		if got := h.holdings(t); got.attachments != n || got.leases != n {
			t.Errorf("%d attachments and %d leases, want %d", got.attachments, got.leases, n)
		}
	}
	remove := []string{cripods, "-socket", containerdSocket, "remove", "-id", pods[0].ID}
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if out, err := h.command(ctx, remove...).CombinedOutput(); err == nil || !strings.Contains(string(out), "third-party") {
		t.Errorf("DEL without the plugin: %v\n%s", err, out)
	}
	want(2)
	h.run(t, "sh", "-c", "kill -9 $(pidof containerd)")
	want(2)
	h.start(t, "containerd", "--config", filepath.Join(h.dir, "containerd.toml"))
	h.run(t, cripods, "-socket", containerdSocket, "status")
	want(2)
	install()
	h.run(t, remove...)
	want(1)

	// The container and its namespace end, and containerd forgets them: nobody calls DEL.
	h.run(t, "sh", "-c", "kill -9 $(pidof containerd) $(pidof containerd-shim-runc-v2) $(pidof sleep) && umount "+pods[1].Netns+" && rm "+pods[1].Netns)
	h.run(t, "sh", "-c", "while ip -o link | grep -q 'master "+bridge+"'; do :; done")
	want(0) // what is left is the runtime's: its cached result
}
