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

// maxScratch is the maximum size of a delegate's configuration in bytes.
const maxScratch = 1 << 20

// scratch is the delegate's configuration that the flannel plugin kept for an attachment.
type scratch struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// delScratch runs DEL of the delegate for an attachment that the flannel plugin made, and deletes
// the plugin's file. The file's name has only the container ID, so a file with another network's
// name belongs to another attachment.
func (c *Conf) delScratch(ctx context.Context, h *roles.Host, req *roles.Request) (done bool, err error) {
	path := filepath.Join(c.DataDir, req.ContainerID)
	raw, s, err := readScratch(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		h.Log.Warn("cannot read the flannel plugin's file, continuing with the configuration", "error", err)
		return false, nil
	}
	if s.Name != c.Name {
		return false, nil
	}
	req.Conf = raw
	if err := h.Delegate.Del(ctx, s.Type, req); err != nil {
		return false, fmt.Errorf("run DEL with the configuration in %q: %w", path, err)
	}
	return true, removeScratch(path)
}

// collectScratch deletes the files of this network's containers that have no valid attachment. The
// delegate's GC has already removed the attachments.
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
		return fmt.Errorf("remove the flannel plugin's file: %w", err)
	}
	return nil
}
