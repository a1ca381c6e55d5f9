package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// defaultCacheDir is where libcni keeps results unless a runtime says otherwise.
const defaultCacheDir = "/var/lib/cni/results"

// defaultDataDir is host-local's when the configuration names none.
const defaultDataDir = "/var/lib/cni/networks"

// maxCacheFile bounds what is read of one cached result.
const maxCacheFile = 1 << 20

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
		return defaultDataDir
	}
	if len(conf.Plugins) > 0 {
		conf.plugin = conf.Plugins[0]
	}
	if conf.IPAM.DataDir == "" {
		return defaultDataDir
	}
	return filepath.Clean(conf.IPAM.DataDir) // as host-local names its pools
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
