// Package objects keeps objects of Kubernetes' API in a registry without an API server, in the API's JSON: a text in
// the collection of its kind. A controller works with it as with rest.Client.
package objects

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// Registry has the collections of objects.
type Registry interface {
	Collection(name string) cluster.Watched
}

// Client reads and writes objects. The path of one ends with the kind's plural and the name. The resourceVersion is
// that of the text in its collection.
type Client struct{ registry Registry }

// New returns a client.
func New(r Registry) *Client { return &Client{r} }

// collections begins the names of the collections.
const collections = "nodeipam-"

// attempts bounds the writes of a patch without a resourceVersion while other programs change the object.
const attempts = 10

// object is any object.
type object map[string]any

// member returns the member as an object. A missing one is added.
func (o object) member(name string) object {
	m, ok := o[name].(map[string]any)
	if !ok {
		m = map[string]any{}
		o[name] = m
	}
	return m
}

// convert stores a value in another one with the same JSON.
func convert(from, to any) error {
	b, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	return nil
}

// collection returns that of a path.
func (c *Client) collection(plural string) cluster.Watched {
	return c.registry.Collection(collections + path.Base(plural))
}

// Get reads one object into v. If it does not exist, the error is rest.ErrNotFound.
func (c *Client) Get(ctx context.Context, at string, v any) error {
	o, _, err := c.read(ctx, at)
	if err != nil {
		return err
	}
	if err := convert(o, v); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

func (c *Client) read(ctx context.Context, at string) (o object, version string, err error) {
	name := path.Base(at)
	if err := rest.CheckName("object", name); err != nil {
		return nil, "", err
	}
	text, version, err := c.collection(path.Dir(at)).Read(ctx, name)
	if err == nil && version == "" {
		err = rest.ErrNotFound
	}
	if err == nil {
		o, err = parse(name, text, version)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", at, err)
	}
	return o, version, nil
}

// parse reads an object. It must have a uid, because another object of the same name is not the same one.
func parse(name string, text []byte, version string) (object, error) {
	var o object
	fault := errors.New("it cannot be read")
	if json.Unmarshal(text, &o) == nil && o != nil {
		meta := o.member("metadata")
		uid, _ := meta["uid"].(string)
		switch {
		case meta["name"] != name:
			fault = errors.New("metadata.name is not that of the file or key")
		case uid == "":
			fault = errors.New("metadata.uid is missing")
		default:
			meta["resourceVersion"] = version
			return o, nil
		}
	}
	return nil, fmt.Errorf("%w: %w: repair or delete it", cluster.ErrInvalid, fault)
}

// write stores an object, and its new state in v unless v is nil.
func (c *Client) write(ctx context.Context, plural string, o object, version string, v any) error {
	meta := o.member("metadata")
	delete(meta, "resourceVersion")
	name, _ := meta["name"].(string)
	if err := rest.CheckName("object", name); err != nil {
		return err
	}
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	version, err = c.collection(plural).Write(ctx, name, append(text, '\n'), version)
	if errors.Is(err, cluster.ErrRaced) {
		err = fmt.Errorf("%s/%s: %w", plural, name, rest.ErrConflict)
	}
	if err != nil || v == nil {
		return err
	}
	meta["resourceVersion"] = version
	return convert(o, v)
}

// Create adds an object to a collection. If it exists, the error is rest.ErrConflict.
func (c *Client) Create(ctx context.Context, plural string, from, v any) error {
	o := object{}
	if err := convert(from, &o); err != nil {
		return err
	}
	o.member("metadata")["uid"] = rand.Text()
	return c.write(ctx, plural, o, "", v)
}

// Patch applies a merge patch (RFC 7386). If it has a metadata.resourceVersion or uid that is not the object's, the
// error is rest.ErrConflict. kind must be rest.MergePatch.
func (c *Client) Patch(ctx context.Context, at, _ string, from, v any) error {
	patch := object{}
	if err := convert(from, &patch); err != nil {
		return err
	}
	want := patch.member("metadata")
	for try := 1; ; try++ {
		o, version, err := c.read(ctx, at)
		if err != nil {
			return err
		}
		for _, key := range []string{"resourceVersion", "uid"} {
			if want[key] != nil && want[key] != o.member("metadata")[key] {
				return fmt.Errorf("%s: %w: it has another %s", at, rest.ErrConflict, key)
			}
		}
		merge(o, patch)
		err = c.write(ctx, path.Dir(at), o, version, v)
		if !errors.Is(err, rest.ErrConflict) || want["resourceVersion"] != nil || try == attempts {
			return err
		}
	}
}

func merge(into, patch map[string]any) {
	for key, value := range patch {
		inner, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isObject:
			merge(object(into).member(key), inner)
		default:
			into[key] = value
		}
	}
}

// Delete removes an object. A missing one is not an error.
func (c *Client) Delete(ctx context.Context, at string) error {
	if err := rest.CheckName("object", path.Base(at)); err != nil {
		return err
	}
	l := c.collection(path.Dir(at))
	for try := 1; ; try++ {
		_, version, err := l.Read(ctx, path.Base(at))
		if err != nil || version == "" {
			return err
		}
		if _, err = l.Write(ctx, path.Base(at), nil, version); !errors.Is(err, cluster.ErrRaced) || try == attempts {
			return err
		}
	}
}
