package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
)

// maxScratch is more than a delegate's configuration is.
const maxScratch = 1 << 20

// scratch is what the flannel plugin kept of an attachment: the delegate's configuration.
type scratch struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// delScratch has the delegate of the flannel plugin detach what that plugin
// attached, and then forgets it. The file is named after the container alone:
// with another network's name in it, it is another attachment's.
func (c *Conf) delScratch(ctx context.Context, h *roles.Host, req *roles.Request) (done bool, err error) {
	path := filepath.Join(c.DataDir, req.ContainerID)
	raw, s, err := readScratch(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		h.Log.Warn("what the flannel plugin kept cannot be read, going on with the configuration", "error", err)
		return false, nil
	}
	if s.Name != c.Name {
		return false, nil
	}
	req.Conf = raw
	if err := h.Delegate.Del(ctx, s.Type, req); err != nil {
		return false, fmt.Errorf("detach by %q: %w", path, err)
	}
	return true, removeScratch(path)
}

// collectScratch removes the files of this network's containers that have no
// valid attachment. The delegate's GC has removed what they tell of.
func (c *Conf) collectScratch(req *roles.Request) error {
	valid := map[string]bool{}
	for _, v := range req.Valid {
		valid[v.ContainerID] = true
	}
	entries, err := os.ReadDir(c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		path := filepath.Join(c.DataDir, e.Name())
		if valid[e.Name()] || !e.Type().IsRegular() {
			continue
		}
		if _, s, err := readScratch(path); err == nil && s.Name == c.Name {
			errs = append(errs, removeScratch(path))
		}
	}
	return errors.Join(errs...)
}

// readScratch reads one file.
func readScratch(path string) (json.RawMessage, *scratch, error) {
	raw, err := smallfile.ReadOwn(path, maxScratch)
	if err != nil {
		return nil, nil, err
	}
	var s scratch
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, nil, fmt.Errorf("%q: %w", path, err)
	}
	if s.Type == "" {
		return nil, nil, fmt.Errorf("%q: names no delegate", path)
	}
	return raw, &s, nil
}

func removeScratch(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what the flannel plugin kept: %w", err)
	}
	return nil
}
