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
)

// Finder finds networks. The first source that knows a name decides; a source
// that cannot answer ends the search, for the same name must not mean another
// network while the API server is down.
type Finder struct {
	Sources []Source
	// ConfDir is the directory of the configurations of objects without one.
	ConfDir string
	// Self are the types of the plugin that asks: a network of one of these would
	// have it call itself without end.
	Self []string
}

// Network is the network that an annotation names.
func (f *Finder) Network(ctx context.Context, namespace, name string) (*Network, error) {
	o, looked, err := f.object(ctx, namespace, name)
	if err == nil && o == nil {
		err = notFound(looked)
	}
	var n *Network
	if err == nil {
		n, err = f.network(o)
	}
	if err != nil {
		if namespace != "" {
			name = namespace + "/" + name
		}
		return nil, fmt.Errorf("network %q: %w", name, err)
	}
	return n, nil
}

// object is that of the first source that has it, or nil and where it is not.
func (f *Finder) object(ctx context.Context, namespace, name string) (o *Object, looked []error, err error) {
	for _, s := range f.Sources {
		o, err := s.Object(ctx, namespace, name)
		if !errors.Is(err, ErrNotFound) {
			return o, nil, err
		}
		looked = append(looked, err)
	}
	return nil, looked, nil
}

// notFound tells each place where a network is not.
func notFound(looked []error) error {
	places := []string{"there is nowhere to look"}
	for i, err := range looked {
		places = append(places[:i], strings.TrimPrefix(err.Error(), ErrNotFound.Error()+" "))
	}
	return fmt.Errorf("%w %s", ErrNotFound, strings.Join(places, ", nor "))
}

// network is what an object describes (the standard, section 3.4.1).
func (f *Finder) network(o *Object) (*Network, error) {
	if len(bytes.TrimSpace(o.Config)) == 0 {
		n, err := f.onDisk(o.Name)
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
	raw, err := named(o.Config, c, o.Name)
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

// Default is a network that the node's configuration names: an object of the
// namespace, else the configuration of that name in ConfDir; a value with a slash
// is the absolute path of a configuration, or of a directory, whose first one it is.
func (f *Finder) Default(ctx context.Context, namespace, value string) (*Network, error) {
	if strings.Contains(value, "/") {
		return f.byPath(value)
	}
	var o *Object
	var looked []error
	var err error
	if isName(value, false) {
		o, looked, err = f.object(ctx, namespace, value)
	}
	if o != nil {
		n, err := f.network(o)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", value, err)
		}
		return n, nil
	}
	n, diskErr := f.onDisk(value)
	switch {
	case diskErr == nil:
		return n, nil // also while a source cannot answer: this is the node's own
	case err != nil:
		return nil, fmt.Errorf("network %q: %w", value, errors.Join(err, diskErr))
	case errors.Is(diskErr, ErrNotFound):
		diskErr = notFound(append(looked, diskErr))
	}
	return nil, fmt.Errorf("network %q: %w", value, diskErr)
}

func (f *Finder) byPath(path string) (*Network, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("network %q: a path has to be absolute", path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if st.IsDir() {
		return f.first(path)
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
