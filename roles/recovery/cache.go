package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// DefaultCacheDir is where libcni keeps results unless a runtime says otherwise.
const DefaultCacheDir = "/var/lib/cni/results"

// DefaultDataDir is host-local's when the configuration names none.
const DefaultDataDir = "/var/lib/cni/networks"

// maxCacheFile bounds what is read of one cached result.
const maxCacheFile = 1 << 20

// CacheEntry is what we need of libcni's cached result.
type CacheEntry struct {
	Kind        string `json:"kind"`
	ContainerID string `json:"containerId"`
	IfName      string `json:"ifName"`
	Network     string `json:"networkName"`
	Netns       string `json:"netns"`
	// Config is the configuration list, base64 in JSON.
	Config []byte `json:"config"`
	// Result is the last plugin's, of any version of the specification.
	Result json.RawMessage `json:"result"`
}

// Key returns the attachment that the entry describes.
func (c *CacheEntry) Key() store.Key {
	return store.Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// cachedPlugin is what we need of a plugin's configuration, or of a list.
type cachedPlugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	} `json:"ipam"`
	// Plugins are the plugins of a list, fused or not.
	Plugins []cachedPlugin `json:"plugins"`
}

// plugin is the configuration of the list's first plugin, which makes the
// interface; zero where it cannot be read.
func (c *CacheEntry) plugin() cachedPlugin {
	var p cachedPlugin
	if json.Unmarshal(c.Config, &p) != nil {
		return cachedPlugin{}
	}
	for len(p.Plugins) > 0 {
		p = p.Plugins[0]
	}
	return p
}

// dataDir is the data directory of the pool that the addresses are of; ok is
// false where an IPAM plugin gave them that keeps no leases here. The type is empty
// where a meta plugin wrote the configuration without it.
func (p *cachedPlugin) dataDir() (dir string, ok bool) {
	if p.IPAM.Type == "cloud-ipam" || p.IPAM.Type == "azure-vnet-ipam" {
		return store.CloudDataDir, true
	}
	if p.IPAM.Type != "" && p.IPAM.Type != "host-local" {
		return "", false
	}
	if p.IPAM.DataDir == "" {
		return DefaultDataDir, true
	}
	return filepath.Clean(p.IPAM.DataDir), true // as host-local names its pools
}

// Addresses returns the result's addresses without loopback and link-local ones, which
// no pool contains.
func (c *CacheEntry) Addresses() []netip.Prefix {
	type ip struct {
		IP string `json:"ip"`
	}
	var result struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		IP4 ip `json:"ip4"` // before 0.3.0
		IP6 ip `json:"ip6"`
	}
	if json.Unmarshal(c.Result, &result) != nil {
		return nil
	}
	texts := []string{result.IP4.IP, result.IP6.IP}
	for _, i := range result.IPs {
		texts = append(texts, i.Address)
	}
	var out []netip.Prefix
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil && p.Addr().IsGlobalUnicast() {
			out = append(out, p)
		}
	}
	return out
}

// ReadCaches reads libcni's cached results, by label. It logs and leaves out
// what cannot be read.
func ReadCaches(h *roles.Host, dirs []string) map[string]*CacheEntry {
	out := map[string]*CacheEntry{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.Log.Warn("read runtime's cache", "dir", dir, "error", err)
		}
		for _, e := range entries {
			c, err := readCacheFile(filepath.Join(dir, e.Name()))
			if err != nil {
				h.Log.Warn("read runtime's cache", "file", e.Name(), "error", err)
				continue
			}
			out[record.Label(c.Key())] = c
		}
	}
	return out
}

// anyAlive reports whether a cache names a namespace that exists.
func anyAlive(cache map[string]*CacheEntry) bool {
	for _, c := range cache {
		if _, err := os.Stat(c.Netns); c.Netns != "" && err == nil {
			return true
		}
	}
	return false
}

// withDelegates replaces the entry of a meta role by an entry for each network that it
// delegated to, because those have the attachments. The caller is making the state file,
// so it does not wait for keep.db: a busy keep.db is an error, and the call is repeated,
// unless nothing is alive, as after a boot, when all pods start at once.
func withDelegates(ctx context.Context, h *roles.Host, cache map[string]*CacheEntry, living bool) (map[string]*CacheEntry, error) {
	var all []store.Delegation
	err := h.Store.KeepTryView(ctx, func(tx *store.KeepTx) (err error) {
		all, err = tx.Delegations("")
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDamaged) && (living || !errors.Is(err, store.ErrBusy)) {
		return nil, err
	}
	for i := range all {
		owner := record.Label(all[i].Owner)
		kept := cache[owner]
		delete(cache, owner)
		for j, d := range all[i].Delegates {
			var list struct {
				Name string `json:"name"`
			}
			if json.Unmarshal(d.List, &list) != nil {
				continue
			}
			c := &CacheEntry{ContainerID: all[i].Owner.ContainerID, IfName: d.IfName, Network: list.Name, Netns: all[i].Netns.Path, Config: d.List}
			if j == 0 && kept != nil {
				c.Result = kept.Result
			}
			cache[record.Label(c.Key())] = c
		}
	}
	return cache, nil
}

// readCacheFile reads one entry without following links or blocking on a FIFO.
func readCacheFile(path string) (*CacheEntry, error) {
	b, err := smallfile.ReadOwn(path, maxCacheFile)
	if err != nil {
		return nil, err
	}
	var c CacheEntry
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%q: %w: %w", path, roles.ErrDecode, err)
	}
	return &c, nil
}
