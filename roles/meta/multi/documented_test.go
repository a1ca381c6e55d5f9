package multi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// examples installs the networks of examples/, written as in Multus's documentation, with the test's interfaces.
func (w *world) examples() {
	w.t.Helper()
	own := strings.NewReplacer(`"eth0"`, `"documented"`, `"eth1"`, `"documentedx"`)
	for _, pattern := range []struct{ from, to string }{{"multi.d/default/*", "nets/default/"}, {"multi.net.d/*", "confs/"}} {
		files, err := filepath.Glob("../../../examples/" + pattern.from)
		if err != nil || len(files) == 0 {
			w.t.Fatalf("no examples %s: %v", pattern.from, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				w.t.Fatal(err)
			}
			w.write(pattern.to+filepath.Base(file), own.Replace(string(text)))
		}
	}
}

// TestDocumented attaches a pod to each network of examples/ and detaches it after its
// definition was removed. The reference's tests: "executes delegates given … kubernetes
// networks", "… with an empty spec from disk", "deletes without the API server".
func TestDocumented(t *testing.T) {
	for _, tc := range []struct{ name, kind, address string }{
		{"bridge-net", "", "10.21.0.3/16 dev net1"},
		{"macvlan-net", "macvlan", "192.168.1.201/24 dev net1"},
		{"ipvlan-net", "ipvlan", "10.22.0.7/24 dev net1"},
		{"host-device-net", "", ""},
		{"on-disk-net", "", "10.23.0.3/24 dev net1"},
		{"plain-net", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.kind != "" {
				netopstest.NeedKind(t, tc.kind)
			}
			w := newWorld(t)
			netopstest.Master(t, "documented")
			w.examples()
			w.wish("default/" + tc.name)
			start := w.warm()
			a := w.OK(w.call("ADD"))
			if want := "net-a@eth0 default/" + tc.name + "@net1"; w.status() != want {
				t.Errorf("network-status %q, want %q", w.status(), want)
			}
			w.ns.Link(t, "net1")
			if state := w.state(); !strings.Contains(state, "address "+tc.address) {
				t.Errorf("no %s in\n%s", tc.address, state)
			}
			w.OK(w.check(a.Stdout))
			for _, dir := range []string{"nets", "confs"} {
				if err := os.RemoveAll(w.file(dir)); err != nil {
					t.Fatal(err)
				}
			}
			w.OK(w.bare())
			w.same(start, "after DEL")
		})
	}
}
