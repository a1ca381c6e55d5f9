package recovery

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestCachedAddresses: results of every version of the specification are read.
func TestCachedAddresses(t *testing.T) {
	for _, c := range []struct {
		name, result string
		want         []string
	}{
		{"1.0.0", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"},{"address":"fd00:1::2/64"}]}`, []string{"10.1.0.2/24", "fd00:1::2/64"}},
		{"0.3.1", `{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.2/24"}]}`, []string{"10.1.0.2/24"}},
		{"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"},"ip6":{"ip":"fd00:1::2/64"}}`, []string{"10.1.0.2/24", "fd00:1::2/64"}},
		{"loopback and link-local", `{"ips":[{"address":"127.0.0.1/8"},{"address":"::1/128"},{"address":"fe80::1/64"}]}`, nil},
		{"garbage among them", `{"ips":[{"address":"10.1.0.2"},{"address":""},{},{"address":"10.1.0.3/24"}]}`, []string{"10.1.0.3/24"}},
		{"another form", `{"ips":7}`, nil},
		{"none", ``, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := CacheEntry{Result: json.RawMessage(c.result)}
			var have []string
			for _, p := range e.Addresses() {
				have = append(have, p.String())
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("have %q, want %q", have, c.want)
			}
		})
	}
}

// TestCachedPool: the pool of a cached configuration's addresses is found.
func TestCachedPool(t *testing.T) {
	for _, c := range []struct {
		name, conf, dir string
		pooled          bool
	}{
		{"list", `{"plugins":[{"type":"macvlan","ipam":{"type":"host-local","dataDir":"/a/../b/"}},{"type":"tuning"}]}`, "/b", true},
		{"no list", `{"type":"macvlan","ipam":{"type":"host-local"}}`, DefaultDataDir, true},
		{"delegate's", `{"type":"flannel"}`, DefaultDataDir, true},
		{"cloud", `{"plugins":[{"type":"azure-vnet","ipam":{"type":"azure-vnet-ipam"}},{"type":"portmap"}]}`, store.CloudDataDir, true},
		{"static", `{"type":"macvlan","ipam":{"type":"static"}}`, "", false},
		{"fused list", `{"plugins":[{"type":"chain","plugins":[{"type":"macvlan","ipam":{"type":"host-local","dataDir":"/b"}},{"type":"tuning"}]}]}`, "/b", true},
		{"fused cloud", `{"plugins":[{"type":"chain","plugins":[{"type":"routed","ipam":{"type":"cloud-ipam"}}]}]}`, store.CloudDataDir, true},
		{"range", `{"type":"macvlan","ipam":{"type":"range"}}`, "range:", true},
		{"a range of one network", `{"type":"macvlan","ipam":{"type":"whereabouts","enable_overlapping_ranges":false}}`, "range:net", true},
		{"a named pool", `{"type":"macvlan","ipam":{"type":"whereabouts","network_name":"lan","enable_overlapping_ranges":false}}`, "range:lan", true},
		{"garbage", `{"plugins":`, DefaultDataDir, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := CacheEntry{Network: "net", Config: []byte(c.conf)}
			p := e.plugin()
			if dir, pooled := p.dataDir(); dir != c.dir || pooled != c.pooled {
				t.Errorf("have %q, %v, want %q, %v", dir, pooled, c.dir, c.pooled)
			}
		})
	}
}

// FuzzCache: every cache file is read or skipped, without a panic.
func FuzzCache(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","ifName":"eth0","networkName":"n","netns":"/run/netns/a",
		"config":"eyJ0eXBlIjoibWFjdmxhbiIsImlwYW0iOnsidHlwZSI6Imhvc3QtbG9jYWwifX0=","result":{"ips":[{"address":"10.1.0.2/24"}]}}`))
	f.Add([]byte(`{"config":"e30=","result":{"ip4":{"ip":"10.1.0.2/24"}}}`))
	f.Add([]byte(`null`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		file := filepath.Join(dir, "entry")
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCache(file)
		if err != nil {
			return
		}
		p := c.plugin()
		if dir, pooled := p.dataDir(); pooled && dir == unknownDir {
			t.Error("a cached configuration has the data directory of unknown pools")
		}
		for _, a := range c.Addresses() {
			if !a.IsValid() {
				t.Errorf("address %v", a)
			}
		}
	})
}

// TestCachedNamespace: a cache without CNI_NETNS, as containerd 1.6 writes it, has it in the result.
func TestCachedNamespace(t *testing.T) {
	for _, tc := range []struct{ name, cache, want string }{
		{"cached", `{"ifName":"eth0","netns":"/a","result":{"interfaces":[{"name":"eth0","sandbox":"/b"}]}}`, "/a"},
		{"in the result", `{"ifName":"eth0","result":{"interfaces":[{"name":"br0"},{"name":"net1","sandbox":"/a"},{"name":"eth0","sandbox":"/b"}]}}`, "/b"},
		{"host's interface of the same name", `{"ifName":"eth0","result":{"interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/b"}]}}`, "/b"},
		{"other interface", `{"ifName":"eth0","result":{"interfaces":[{"name":"net1","sandbox":"/a"}]}}`, ""},
		{"no result", `{"ifName":"eth0"}`, ""},
		{"faulty result", `{"ifName":"eth0","result":{"interfaces":3}}`, ""},
	} {
		path := filepath.Join(t.TempDir(), "cache")
		if err := os.WriteFile(path, []byte(tc.cache), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCache(path)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if c.Netns != tc.want {
			t.Errorf("%s: namespace %q, want %q", tc.name, c.Netns, tc.want)
		}
	}
}
