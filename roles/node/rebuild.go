package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// defaultCacheDir is where libcni keeps results unless a runtime says otherwise.
const defaultCacheDir = "/var/lib/cni/results"

// maxCacheFile bounds what is read of one cached result.
const maxCacheFile = 1 << 20

// rebuild fills a new state file from what the kernel and the runtimes' caches
// still know: every interface with our label becomes an attachment, and its
// addresses are reserved again. An interface whose owner cannot be told keeps
// its addresses reserved under its label.
func rebuild(ctx context.Context, h *roles.Host, tx *store.Tx, cacheDirs []string) error {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	var found []netops.LinkInfo
	for _, l := range links {
		if _, ok := parseAlias(l.Alias); ok && l.Kind == "veth" {
			found = append(found, l)
		}
	}
	if len(found) == 0 {
		return nil
	}
	if len(cacheDirs) == 0 {
		cacheDirs = []string{defaultCacheDir}
	}
	cache := readCaches(h, cacheDirs)
	for _, l := range found {
		info, _ := parseAlias(l.Alias)
		if err := rebuildOne(h, tx, l, info, cache[info.label]); err != nil {
			return fmt.Errorf("rebuild attachment of %q: %w", l.Name, err)
		}
	}
	h.Log.Warn("state file was missing, rebuilt from the kernel", "attachments", len(found))
	return nil
}

// rebuildOne stores the attachment of one interface, and leases for its
// addresses in the pool that its network uses.
func rebuildOne(h *roles.Host, tx *store.Tx, l netops.LinkInfo, info aliasInfo, c *cacheEntry) error {
	key := info.key
	netns := store.Netns{}
	dataDir := ""
	switch {
	case c != nil:
		key = c.key()
		netns = store.Netns{Path: c.Netns, Mount: mountNamespace()}
		dataDir = c.dataDir()
	case !info.whole:
		key = store.Key{Network: info.key.Network, ContainerID: info.label, IfName: info.key.IfName}
	}
	undo := netops.Step{Verb: netops.VerbDel, Object: &netops.Link{In: netops.Host, Name: l.Name, Kind: l.Kind, Alias: info.label}}
	changes, err := json.Marshal([]netops.Change{{Do: netops.Step{Verb: netops.VerbAdd, Object: undo.Object}, Undo: &undo}})
	if err != nil {
		return err
	}
	now := h.Now()
	a := &store.Attachment{
		Key: key, Netns: netns, HostLink: l.Name, Addresses: info.addresses,
		Parts:   []store.Part{{Role: "rebuilt", State: store.Done, Changes: changes, Time: now}},
		Created: now, Updated: now, Program: h.Program,
	}
	if err := tx.PutAttachment(a); err != nil {
		return err
	}
	pool, err := tx.Pool(store.PoolID{DataDir: dataDir, Network: key.Network})
	if err != nil {
		return err
	}
	for i, p := range info.addresses {
		err := pool.Reserve(store.Lease{Address: p.Addr(), Owner: key, Set: i, Netns: netns, Time: now})
		if err != nil && !errors.Is(err, store.ErrTaken) {
			return err
		}
	}
	return nil
}

// cacheEntry is what we need of libcni's cached result.
type cacheEntry struct {
	Kind        string `json:"kind"`
	ContainerID string `json:"containerId"`
	IfName      string `json:"ifName"`
	Network     string `json:"networkName"`
	Netns       string `json:"netns"`
	// Config is the configuration list, base64 in JSON.
	Config []byte `json:"config"`
}

func (c *cacheEntry) key() store.Key {
	return store.Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// dataDir is the pool's data directory as the first plugin's ipam names it.
func (c *cacheEntry) dataDir() string {
	type plugin struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	var conf struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal(c.Config, &conf) != nil {
		return ""
	}
	if len(conf.Plugins) > 0 {
		return conf.Plugins[0].IPAM.DataDir
	}
	return conf.IPAM.DataDir
}

// readCaches reads libcni's cached results, by label. What cannot be read is
// told in the log and left out.
func readCaches(h *roles.Host, dirs []string) map[string]*cacheEntry {
	out := map[string]*cacheEntry{}
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
			out[Label(c.key())] = c
		}
	}
	return out
}

// readCacheFile reads one entry without following links or blocking on a FIFO.
func readCacheFile(path string) (*cacheEntry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCacheFile))
	if err != nil {
		return nil, err
	}
	var c cacheEntry
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%q: %w: %w", path, roles.ErrDecode, err)
	}
	return &c, nil
}
