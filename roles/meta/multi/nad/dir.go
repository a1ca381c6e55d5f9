package nad

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
)

// DefaultDir is the directory of the network definitions of a node without an API server.
const DefaultDir = "/etc/cni/net.d/multi.d"

// extensions returns the file extensions of a Dir in the order of the search. The content of a file
// decides its format.
func extensions() []string { return []string{".conflist", ".conf", ".json", ".yaml", ".yml"} }

// Dir is a Source: a directory with one file for each network in a subdirectory for each namespace:
// <dir>/<namespace>/<name>.conflist, .conf, .json, .yaml or .yml. A file has a CNI configuration or
// a NetworkAttachmentDefinition as JSON or YAML. The networks of pods without a namespace are in
// the directory itself. A missing directory is an empty Source.
type Dir string

// Object reads the file of that name.
func (d Dir) Object(_ context.Context, namespace, name string) (*Object, error) {
	switch {
	case namespace != "" && !wish.IsLabel(namespace):
		return nil, fmt.Errorf("%w in %s: %q is not a namespace", ErrNotFound, string(d), namespace)
	case !wish.IsSubdomain(name):
		return nil, fmt.Errorf("%w in %s: %q is not the name of an object", ErrNotFound, string(d), name)
	}
	path := filepath.Join(string(d), namespace, name)
	notThere := fmt.Errorf("%w in %s.{conflist,conf,json,yaml}", ErrNotFound, path)
	dir, err := os.OpenRoot(string(d))
	if errors.Is(err, fs.ErrNotExist) || d == "" {
		return nil, notThere
	}
	if err != nil {
		return nil, fmt.Errorf("directory of networks: %w", err)
	}
	defer dir.Close()
	for _, below := range []string{".", namespace} {
		switch err := checkTrusted(dir, filepath.Clean(below)); {
		case errors.Is(err, fs.ErrNotExist):
			return nil, notThere
		case err != nil:
			return nil, err
		}
	}
	for _, ext := range extensions() {
		raw, err := smallfile.ReadTrusted(dir, filepath.Join(namespace, name+ext), maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
		o, err := fromFile(raw, namespace, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path+ext, err)
		}
		o.From = path + ext
		return o, nil
	}
	return nil, notThere
}
