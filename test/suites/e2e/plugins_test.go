package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	network = "e2e"
	bridge  = "cbr-e2e"
	subnet  = "10.111.0.0/24"
	gateway = "10.111.0.1"
)

// conflist is the configuration for both runtimes. containerd 1.6 does not know results of version 1.1.0: see cniVersions.
const conflist = `{
  "cniVersion": "1.0.0",
  "cniVersions": ["0.3.1", "1.0.0", "1.1.0"],
  "name": "` + network + `",
  "plugins": [{
    "type": "bridge",
    "bridge": "` + bridge + `",
    "isGateway": true,
    "ipMasq": true,
    "hairpinMode": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "` + subnet + `"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`

// root returns the repository's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// otherPlugins returns the directory of the plugins to test in place of cnibox, or "".
func otherPlugins() string { return os.Getenv("CNIBOX_TEST_PLUGIN_DIR") }

// links makes a CNI directory as `cnibox install` would: one symbolic link for each CNI type that the runtimes execute.
func links(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, role := range []string{"azure-vnet", "azure-vnet-ipam", "bridge", "dhcp", "firewall", "host-device", "host-local", "loopback", "macvlan", "multi", "portmap", "ptp", "tuning"} {
		target := filepath.Join(root(t), "bin", "cnibox")
		if otherPlugins() != "" {
			if role == "multi" || strings.HasPrefix(role, "azure") {
				continue // the reference has none
			}
			target = filepath.Join(otherPlugins(), role)
		}
		if _, err := os.Stat(target); err != nil {
			t.Fatalf("%v: run `make build` first", err)
		}
		if err := os.Symlink(target, filepath.Join(dir, role)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// writeConf writes the host's only network configuration.
func (h *host) writeConf(t *testing.T) {
	t.Helper()
	writeFile(t, filepath.Join(h.conf, "10-"+network+".conflist"), conflist)
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// holdings are the plugins' records of a network.
type holdings struct {
	attachments, leases int
	others              int // attachments of other networks, such as containerd's own for lo
}

// holdings reads cnibox's state. The reference plugins keep a file for each address and no attachments; the results that the
// runtime's CNI library caches stand in for these.
func (h *host) holdings(t *testing.T) holdings {
	t.Helper()
	if otherPlugins() == "" {
		var s struct {
			Attachments []struct{ Network string }
			Leases      []any
		}
		decode(t, h.run(t, filepath.Join(root(t), "bin", "cnibox"), "state", "--json"), &s)
		got := holdings{leases: len(s.Leases)}
		for _, a := range s.Attachments {
			if a.Network == network {
				got.attachments++
			} else {
				got.others++
			}
		}
		return got
	}
	var got holdings
	for _, f := range h.files(t, "/var/lib/cni/networks/"+network) {
		if strings.HasPrefix(filepath.Base(f), strings.TrimSuffix(gateway, "1")) {
			got.leases++
		}
	}
	got.attachments = len(h.cached(t))
	return got
}

// cached lists the results of the network that a runtime's CNI library keeps for CHECK and DEL.
func (h *host) cached(t *testing.T) []string {
	t.Helper()
	files := h.files(t, "/var/lib/cni/results")
	return slices.DeleteFunc(files, func(f string) bool { return !strings.HasPrefix(filepath.Base(f), network+"-") })
}

// wantNothingLeft compares the host with its state before the first attachment. The bridge and other shared objects of the network
// may stay; nothing may contain the words of an attachment, which are IDs and addresses.
func (h *host) wantNothingLeft(t *testing.T, before []string, words []string) {
	t.Helper()
	for _, l := range h.linkNames(t) {
		if l != bridge && !slices.Contains(before, l) {
			t.Errorf("link %q is left", l)
		}
	}
	if got := h.holdings(t); got != (holdings{}) {
		t.Errorf("%d attachments and %d leases are left, and %d attachments of other networks", got.attachments, got.leases, got.others)
	}
	if got := h.cached(t); len(got) > 0 {
		t.Errorf("cached results are left: %q", got)
	}
	if got := h.files(t, "/run/netns"); len(got) > 0 {
		t.Errorf("network namespaces are left: %q", got)
	}
	for what, text := range map[string]string{
		"nftables":   h.run(t, "nft", "list", "ruleset"),
		"neighbours": h.run(t, "ip", "neigh", "show", "nud", "permanent"),
		"routes":     h.run(t, "ip", "route", "show", "table", "all"),
	} {
		for _, w := range words {
			if containsWord(text, w) {
				t.Errorf("%s still hold %q", what, w)
			}
		}
	}
}

// containsWord reports whether w occurs in text, but not as a part of a longer address: 10.0.0.1 is not in 10.0.0.12.
func containsWord(text, w string) bool {
	for {
		_, after, found := strings.Cut(text, w)
		if !found {
			return false
		}
		if after == "" || !strings.ContainsAny(after[:1], "0123456789abcdef.:") {
			return true
		}
		text = after
	}
}

// serve starts an HTTP server at the host's gateway address; it accepts connections when serve returns. The returned word is its
// answer.
func (h *host) serve(t *testing.T) (url, word string) {
	t.Helper()
	word = fmt.Sprintf("hello from the host of %s", t.Name())
	www := filepath.Join(h.dir, "www")
	writeFile(t, filepath.Join(www, "word"), word)
	h.run(t, "busybox", "httpd", "-p", "8080", "-h", www)
	return "http://" + gateway + ":8080/word", word
}
