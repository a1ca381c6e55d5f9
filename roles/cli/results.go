package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/store"
)

// resultsDir returns the directory of the files that add keeps for attachments until del.
// They have the format of the runtimes' cache, so that a lost state can be rebuilt from
// either.
func (p *Process) resultsDir() string { return p.cacheDirs()[1] }

// cacheDirs returns the directories of the runtimes' cached results, and of our own.
func (p *Process) cacheDirs() []string {
	return recovery.CacheDirs(cmp.Or(p.getenv("CNIBOX_RUN_DIR"), defaultRunDir))
}

// cacheFile returns the path of the call's file.
func (r *call) cacheFile() string {
	return r.p.resultFile(store.Key{Network: r.list.Name, ContainerID: r.Request.ContainerID, IfName: r.Request.IfName})
}

// resultFile returns the path of an attachment's file. The names of a call and of a record
// are checked, so they have no "/".
func (p *Process) resultFile(k store.Key) string {
	return filepath.Join(p.resultsDir(), k.Network+"-"+k.ContainerID+"-"+k.IfName)
}

// writeCache writes the call's file with the result of ADD.
func (r *call) writeCache(res json.RawMessage) error {
	a := recovery.CacheEntry{
		Kind: recovery.CacheKind, ContainerID: r.Request.ContainerID, Config: r.list.raw, IfName: r.Request.IfName, Network: r.list.Name,
		Netns: r.Request.Netns, CapabilityArgs: r.Runtime, Result: res,
	}
	for pair := range strings.SplitSeq(r.Request.Args.String(), ";") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			a.Args = append(a.Args, [2]string{k, v})
		}
	}
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.p.resultsDir(), 0o700); err != nil {
		return err
	}
	return os.WriteFile(r.cacheFile(), raw, 0o600)
}

// readCache returns the result of ADD from the call's file, or nil if there is no file.
func (r *call) readCache() (*roles.Result, error) {
	a, err := readCached(r.cacheFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the result of add: %w", err)
	}
	return result.Decode(r.list.CNIVersion, a.Result)
}

func readCached(file string) (*recovery.CacheEntry, error) {
	a, err := recovery.ReadCache(file)
	if err == nil && a.Kind != recovery.CacheKind {
		err = fmt.Errorf("%q: %w: its kind is %.40q", file, roles.ErrDecode, a.Kind)
	}
	return a, err
}

// allCached returns the cached files of a network. It skips files that cannot be read.
func (p *Process) allCached(network string) ([]*recovery.CacheEntry, error) {
	entries, err := os.ReadDir(p.resultsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []*recovery.CacheEntry
	for _, e := range entries {
		a, err := readCached(filepath.Join(p.resultsDir(), e.Name()))
		if err == nil && a.Network == network && a.IfName != "" {
			all = append(all, a)
		}
	}
	return all, nil
}

// cachedArgs returns the CNI_ARGS of a cached attachment.
func cachedArgs(a *recovery.CacheEntry) (roles.Args, error) {
	var pairs []string
	for _, kv := range a.Args {
		pairs = append(pairs, kv[0]+"="+kv[1])
	}
	return roles.ParseArgs(strings.Join(pairs, ";"))
}
