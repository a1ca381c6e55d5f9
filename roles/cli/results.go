package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/result"
)

// cached is the file that add keeps for an attachment until del. It has the format of
// the runtimes' cache (libcni's cniCacheV1), so that a lost state can be rebuilt from
// either.
type cached struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	Network        string                     `json:"networkName"`
	Netns          string                     `json:"netns,omitempty"`
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
}

const cachedKind = "cniCacheV1"

// resultsDir returns the directory of the cached files.
func (p *Process) resultsDir() string {
	run := p.getenv("CNIBOX_RUN_DIR")
	if run == "" {
		run = defaultRunDir
	}
	return filepath.Join(run, "cli", "results")
}

// cacheFile returns the path of the call's file. The call's names are checked, so they
// have no "/".
func (r *call) cacheFile() string {
	return filepath.Join(r.p.resultsDir(), r.list.Name+"-"+r.Request.ContainerID+"-"+r.Request.IfName)
}

// writeCache writes the call's file with the result of ADD.
func (r *call) writeCache(res json.RawMessage) error {
	a := cached{
		Kind: cachedKind, ContainerID: r.Request.ContainerID, Config: r.list.raw, IfName: r.Request.IfName, Network: r.list.Name,
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

func readCached(file string) (*cached, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	a := new(cached)
	if err := json.Unmarshal(raw, a); err != nil {
		return nil, fmt.Errorf("%q: %w", file, roles.Mismatch(err))
	}
	if a.Kind != cachedKind {
		return nil, fmt.Errorf("%q: %w: its kind is %.40q", file, roles.ErrDecode, a.Kind)
	}
	return a, nil
}

// allCached returns the cached files of a network. It skips files that cannot be read.
func (p *Process) allCached(network string) ([]*cached, error) {
	entries, err := os.ReadDir(p.resultsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []*cached
	for _, e := range entries {
		a, err := readCached(filepath.Join(p.resultsDir(), e.Name()))
		if err == nil && a.Network == network && a.IfName != "" {
			all = append(all, a)
		}
	}
	return all, nil
}
