package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
)

// stickyConf is a network whose pods keep their addresses over a restart.
const stickyConf = `{
  "cniVersion": "1.0.0",
  "cniVersions": ["0.3.1", "1.0.0", "1.1.0"],
  "name": "` + network + `",
  "plugins": [{
    "type": "bridge",
    "bridge": "` + bridge + `",
    "isGateway": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "` + subnet + `"}], [{"subnet": "fd00:111::/64"}]],
      "sticky": {"key": "pod", "ttl": "1h", "mode": %q}
    }
  }]
}
`

// TestContainerdSticky stops pods and runs them again under their names, in another order and beside new ones: each gets both its
// addresses back. While a pod's old sandbox lives, the new one gets other addresses, or none in the mode strict, and the late
// removal of the old one does not change it.
func TestContainerdSticky(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	if otherPlugins() != "" {
		t.Skip("the reference plugins keep no addresses")
	}
	for _, mode := range []string{"prefer", "strict"} {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			writeFile(t, filepath.Join(h.conf, "10-"+network+".conflist"), fmt.Sprintf(stickyConf, mode))
			before := h.linkNames(t)
			cripods := h.startContainerd(t)
			args := func(n int, more ...string) []string {
				return append([]string{cripods, "-socket", containerdSocket, "run", "-n", fmt.Sprint(n), "-cgroup", h.cgroup}, more...)
			}
			run := func(n int, more ...string) (pods []pod) {
				t.Helper()
				decode(t, h.run(t, args(n, more...)...), &pods)
				return pods
			}
			remove := func(ids ...string) {
				t.Helper()
				all := []string{cripods, "-socket", containerdSocket, "remove"}
				for _, id := range ids {
					all = append(all, "-id", id)
				}
				h.run(t, all...)
			}
			const n = 4
			first := run(n, "-parallel", "1")
			words := wantDistinct(t, first, n, netip.MustParsePrefix(subnet))
			had := map[string]string{}
			for _, p := range first {
				if had[p.Name] = strings.Join(p.IPs, " "); len(p.IPs) != 2 {
					t.Errorf("pod %q has %q, want an address of each family", p.Name, p.IPs)
				}
			}
			remove()
			again := run(n+2, "-parallel", fmt.Sprint(n+2), "-attempt", "1") // all at once: in any order
			words = append(words, wantDistinct(t, again, n+2, netip.MustParsePrefix(subnet))...)
			for _, p := range again[:n] {
				if have := strings.Join(p.IPs, " "); have != had[p.Name] {
					t.Errorf("pod %q has %s again, want %s", p.Name, have, had[p.Name])
				}
			}

			// The old sandboxes still run.
			if mode == "strict" {
				out, err := h.command(t.Context(), args(1, "-attempt", "2")...).CombinedOutput()
				if err == nil || !strings.Contains(string(out), again[0].ID) {
					t.Errorf("a second sandbox of pod-0: %v, want an error that names %s\n%s", err, again[0].ID, out)
				}
				remove()
				h.wantNothingLeft(t, before, words)
				return
			}
			second := run(1, "-attempt", "2")
			words = append(words, wantDistinct(t, append(second, again...), n+3, netip.MustParsePrefix(subnet))...)
			remove(again[0].ID)
			h.run(t, "busybox", "ping", "-c1", "-W60", second[0].IPs[0])
			h.run(t, "nsenter", "--net="+second[0].Netns, "busybox", "ping", "-c1", "-W60", again[1].IPs[0])
			remove(second[0].ID)
			third := run(1, "-attempt", "3")
			if third[0].IPs[0] != second[0].IPs[0] {
				t.Errorf("pod-0 has %q, want what its last sandbox had: %q", third[0].IPs, second[0].IPs)
			}
			words = append(words, third[0].ID)
			remove()
			h.wantNothingLeft(t, before, words)
		})
	}
}
