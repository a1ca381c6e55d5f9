package nad

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles/meta/multi/wish"
)

// Finder finds networks. The first source that has the name is used. A source that cannot answer
// ends the search with an error, so that a name never means another network while the API server is
// down.
type Finder struct {
	Sources []Source
	// ConfDir is the directory of configurations for objects without spec.config.
	ConfDir string
	// Self are the types of the calling plugin. A network with one of them would call the plugin
	// recursively.
	Self []string
}

// Network returns the network that an annotation names.
func (f *Finder) Network(ctx context.Context, namespace, name string) (*Network, error) {
	o, looked, err := f.findObject(ctx, namespace, name)
	if err == nil && o == nil {
		err = notFound(looked)
	}
	var n *Network
	if err == nil {
		n, err = f.networkOf(o)
	}
	if err != nil {
		if namespace != "" {
			name = namespace + "/" + name
		}
		return nil, fmt.Errorf("network %q: %w", name, err)
	}
	return n, nil
}

// findObject returns the object from the first source that has it. Without one it returns nil and the
// errors of all sources.
func (f *Finder) findObject(ctx context.Context, namespace, name string) (o *Object, looked []error, err error) {
	for _, s := range f.Sources {
		o, err := s.Object(ctx, namespace, name)
		if !errors.Is(err, ErrNotFound) {
			return o, nil, err
		}
		looked = append(looked, err)
	}
	return nil, looked, nil
}

// notFound returns an error that lists the searched places.
func notFound(looked []error) error {
	places := []string{"no source is configured"}
	for i, err := range looked {
		places = append(places[:i], strings.TrimPrefix(err.Error(), ErrNotFound.Error()+" "))
	}
	return fmt.Errorf("%w %s", ErrNotFound, strings.Join(places, ", nor "))
}

// networkOf returns the network that an object describes (the standard, section 3.4.1).
func (f *Finder) networkOf(o *Object) (*Network, error) {
	if len(bytes.TrimSpace(o.Config)) == 0 {
		n, err := f.findInConfDir(o.Name)
		if errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("%s has no spec.config: %w", o.From, err)
		}
		if err != nil {
			return nil, err
		}
		n.Namespace, n.Name, n.Resource = o.Namespace, o.Name, o.Annotations[ResourceKey]
		return n, nil
	}
	c, err := readConf(o.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: spec.config: %w", o.From, err)
	}
	raw, err := withName(o.Config, c, o.Name)
	if err != nil {
		return nil, fmt.Errorf("%s: spec.config: %w", o.From, err)
	}
	n := &Network{Namespace: o.Namespace, Name: o.Name, Conf: raw, Resource: o.Annotations[ResourceKey], From: o.From}
	return n, f.notSelf(n.From, c)
}

func (f *Finder) notSelf(from string, c *conf) error {
	for _, t := range c.types() {
		if slices.Contains(f.Self, t) {
			return errSelf(from, t)
		}
	}
	return nil
}

// Default returns a network that the node's configuration names. The value is the name of an object
// of the namespace or of a configuration in ConfDir. A value with a slash is the absolute path of a
// configuration or a directory, whose first configuration is used.
func (f *Finder) Default(ctx context.Context, namespace, value string) (*Network, error) {
	if strings.Contains(value, "/") {
		return f.byPath(value)
	}
	var o *Object
	var looked []error
	var err error
	if wish.IsSubdomain(value) {
		o, looked, err = f.findObject(ctx, namespace, value)
	}
	if o != nil {
		n, err := f.networkOf(o)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", value, err)
		}
		return n, nil
	}
	n, diskErr := f.findInConfDir(value)
	switch {
	case diskErr == nil:
		return n, nil // the node's own file is used even while a source cannot answer
	case err != nil:
		return nil, fmt.Errorf("network %q: %w", value, errors.Join(err, diskErr))
	case errors.Is(diskErr, ErrNotFound):
		diskErr = notFound(append(looked, diskErr))
	}
	return nil, fmt.Errorf("network %q: %w", value, diskErr)
}

func (f *Finder) byPath(path string) (*Network, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("network %q: the path must be absolute", path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if st.IsDir() {
		return f.firstInDir(path)
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	defer dir.Close()
	raw, c, err := readConfFile(dir, filepath.Base(path))
	if err != nil {
		return nil, err
	}
	return &Network{Conf: raw, From: path}, f.notSelf(path, c)
}
