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
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// DefaultCacheDir is libcni's default directory of cached results. containerd, CRI-O, podman
// and nerdctl use it.
const DefaultCacheDir = "/var/lib/cni/results"

// CacheDirs returns the directories with cached results: the runtimes', and that of the
// command line, which is below the run directory.
func CacheDirs(runDir string) []string {
	return []string{DefaultCacheDir, filepath.Join(runDir, "cli", "results")}
}

// DefaultDataDir is host-local's default dataDir.
const DefaultDataDir = "/var/lib/cni/networks"

// maxCacheFile is the largest size in bytes of a cached result.
const maxCacheFile = 1 << 20

// CacheKind is the kind of libcni's cached results.
const CacheKind = "cniCacheV1"

// CacheEntry is libcni's cached result of one attachment (cniCacheV1).
type CacheEntry struct {
	Kind        string `json:"kind"`
	ContainerID string `json:"containerId"`
	// Config is the configuration list, base64 in JSON.
	Config  []byte `json:"config"`
	IfName  string `json:"ifName"`
	Network string `json:"networkName"`
	Netns   string `json:"netns,omitempty"`
	// Args are the pairs of CNI_ARGS.
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	// Result is the last plugin's, of any version of the specification.
	Result json.RawMessage `json:"result,omitempty"`
}

// CachedArgs returns the CNI_ARGS of an attachment's ADD, the runtime's values by capability, and the configuration, from the runtimes' caches.
func CachedArgs(runDir string, k store.Key) (args roles.Args, runtime map[string]json.RawMessage, config []byte, found bool) {
	for _, dir := range CacheDirs(runDir) {
		c, err := ReadCache(filepath.Join(dir, k.Network+"-"+k.ContainerID+"-"+k.IfName)) // as libcni names it
		if err != nil || c.Key() != k {
			continue
		}
		pairs := make([]string, len(c.Args))
		for i, a := range c.Args {
			pairs[i] = a[0] + "=" + a[1]
		}
		if args, err = roles.ParseArgs(strings.Join(pairs, ";")); err == nil {
			return args, c.CapabilityArgs, c.Config, true
		}
	}
	return args, nil, nil, false
}

// PolicyLabels returns the key policyLabels of the plugin that makes the interface.
func PolicyLabels(config []byte) []string {
	c := CacheEntry{Config: config}
	p := c.plugin()
	return p.PolicyLabels
}

// Key returns the attachment that the entry describes.
func (c *CacheEntry) Key() store.Key {
	return store.Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// cachedPlugin contains the keys of a plugin's configuration, or of a list, that a
// rebuild needs.
type cachedPlugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
		// NetworkName and Overlapping are keys of the type range.
		NetworkName string `json:"network_name"`
		Overlapping *bool  `json:"enable_overlapping_ranges"`
	} `json:"ipam"`
	PolicyLabels []string `json:"policyLabels"`
	// Links are those of a bond.
	Links json.RawMessage `json:"links"`
	// Plugins are the plugins of a list, fused or not.
	Plugins []cachedPlugin `json:"plugins"`
	network string
}

// plugin returns the configuration of the list's first plugin, which makes the interface.
// It returns the zero value if the configuration cannot be read.
func (c *CacheEntry) plugin() cachedPlugin {
	var p cachedPlugin
	if json.Unmarshal(c.Config, &p) != nil {
		return cachedPlugin{}
	}
	for len(p.Plugins) > 0 {
		p = p.Plugins[0]
	}
	p.network = c.Network
	return p
}

// bonds reports whether a bond's configuration names an interface.
func (p *cachedPlugin) bonds(name string) bool {
	var links []struct{ Name string }
	if json.Unmarshal(p.Links, &links) != nil {
		return false
	}
	return name != "" && slices.ContainsFunc(links, func(l struct{ Name string }) bool { return l.Name == name })
}

// dataDir returns the data directory of the pool that the addresses came from. ok is
// false if the IPAM plugin has no pool in our store. An empty type means host-local,
// because a meta plugin may have written the configuration without the type.
func (p *cachedPlugin) dataDir() (dir string, ok bool) {
	if p.IPAM.Type == "cloud-ipam" || p.IPAM.Type == "azure-vnet-ipam" {
		return store.CloudDataDir, true
	}
	if p.IPAM.Type == "range" || p.IPAM.Type == "whereabouts" {
		return store.RangeDir(store.RangePool(p.network, p.IPAM.NetworkName, p.IPAM.Overlapping == nil || *p.IPAM.Overlapping)), true
	}
	if p.IPAM.Type != "" && p.IPAM.Type != "host-local" {
		return "", false
	}
	if p.IPAM.DataDir == "" {
		return DefaultDataDir, true
	}
	return filepath.Clean(p.IPAM.DataDir), true // host-local cleans it too
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
		IP4 ip `json:"ip4"` // results before version 0.3.0
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

// ReadCaches reads libcni's cached results and returns them by label. It logs and skips
// unreadable ones.
func ReadCaches(h *roles.Host, dirs []string) map[string]*CacheEntry {
	out := map[string]*CacheEntry{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.Log.Warn("read runtime's cache", "dir", dir, "error", err)
		}
		for _, e := range entries {
			c, err := ReadCache(filepath.Join(dir, e.Name()))
			if err != nil {
				h.Log.Warn("read runtime's cache", "file", e.Name(), "error", err)
				continue
			}
			out[attachment.Label(c.Key())] = c
		}
	}
	return out
}

// withDelegates replaces the entry of a meta role by an entry for each network that it
// delegated to, because these networks have the attachments.
func withDelegates(ctx context.Context, h *roles.Host, cache map[string]*CacheEntry) (map[string]*CacheEntry, error) {
	var all []store.Delegation
	err := h.Store.KeepTryView(ctx, func(tx *store.KeepTx) (err error) {
		all, err = tx.Delegations("")
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}
	for i := range all {
		owner := attachment.Label(all[i].Owner)
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
			cache[attachment.Label(c.Key())] = c
		}
	}
	return cache, nil
}

// ReadCache reads one entry without following links or blocking on a FIFO.
func ReadCache(path string) (*CacheEntry, error) {
	b, err := smallfile.ReadOwn(path, maxCacheFile)
	if err != nil {
		return nil, err
	}
	var c CacheEntry
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%q: %w: %w", path, roles.ErrDecode, err)
	}
	if c.Netns == "" {
		c.Netns = c.sandbox()
	}
	return &c, nil
}

// sandbox returns the namespace of the interface in the result, or "". An older libcni, such as that of containerd 1.6, does not
// cache CNI_NETNS.
func (c *CacheEntry) sandbox() string {
	var result struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if json.Unmarshal(c.Result, &result) != nil {
		return ""
	}
	for _, i := range result.Interfaces {
		if i.Name == c.IfName && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}
