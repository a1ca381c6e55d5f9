package etcd

import (
	"context"
	"fmt"
	"strconv"

	"github.com/cnibox/cnibox/store/cluster"
)

// collection is the keys below a prefix. The version of a text is the key's revision.
type collection struct {
	c      *client
	prefix string
}

// Collection returns the texts whose keys begin with "<prefix>-<name>/". They are not below the prefix of the nodes, so
// that agents do not read them with the nodes.
func (r *Registry) Collection(name string) cluster.Watched {
	return collection{r.c, r.o.Prefix + "-" + name + "/"}
}

// List reads some keys after the others. Each reply has its own revision.
func (l collection) List(ctx context.Context, each func(name string, text []byte, version string)) error {
	ask := rangeRequest{Key: []byte(l.prefix), RangeEnd: end(l.prefix), Limit: page / 10}
	_, err := l.c.pages(ctx, ask, false, func(kv keyValue) {
		if name, ok := l.nameOf(kv.Key); ok {
			each(name, kv.Value, version(kv))
		}
	})
	return err
}

// nameOf returns the name of a key's text.
func (l collection) nameOf(key []byte) (string, bool) {
	return cluster.CutPageName(l.prefix, string(key))
}

func version(kv keyValue) string { return strconv.FormatInt(kv.ModRevision, 10) }

// Watch follows the keys.
func (l collection) Watch(ctx context.Context, to cluster.Follower[cluster.Text]) error {
	return l.watch(to).run(ctx)
}

func (l collection) watch(to cluster.Follower[cluster.Text]) *watch {
	return &watch{c: l.c, what: l.prefix, prefix: l.prefix, name: l.nameOf, to: texts{to}}
}

// texts passes the keys of a collection on.
type texts struct{ cluster.Follower[cluster.Text] }

func (t texts) Put(e entry, listing bool) {
	text := cluster.Text{Name: e.name, Version: version(e.keyValue), Text: e.Value}
	if len(e.Value) > cluster.MaxPage {
		text.Text, text.Version, text.Err = nil, "", fmt.Errorf("%w: it is longer than %d bytes: restore or delete the key", cluster.ErrInvalid, cluster.MaxPage)
	}
	t.Follower.Put(text, listing)
}

func (texts) current() {}

// Read reads the key.
func (l collection) Read(ctx context.Context, name string) (text []byte, version string, err error) {
	if err := cluster.CheckName(name); err != nil {
		return nil, "", err
	}
	kv, err := l.c.get(ctx, l.prefix+name)
	if err != nil {
		return nil, "", fmt.Errorf("read %s%s: %w", l.prefix, name, err)
	}
	if kv == nil {
		return nil, "", nil
	}
	return kv.Value, strconv.FormatInt(kv.ModRevision, 10), nil
}

// Write writes the key in a transaction.
func (l collection) Write(ctx context.Context, name string, text []byte, version string) (next string, err error) {
	if err := cluster.CheckName(name); err != nil {
		return "", err
	}
	key := []byte(l.prefix + name)
	revision := int64(0)
	if version != "" {
		revision, err = strconv.ParseInt(version, 10, 64)
		if err != nil {
			return "", fmt.Errorf("write %s: %w: version %q", key, cluster.ErrInvalid, version)
		}
	}
	do := operation{Put: &putRequest{Key: key, Value: text}}
	if text == nil {
		do = operation{Delete: &deleteRequest{Key: key}}
	}
	var got txnResponse
	if err := l.c.call(ctx, "/v3/kv/txn", txnRequest{Compare: []compare{unchanged(key, revision)}, Success: []operation{do}}, &got); err != nil {
		return "", fmt.Errorf("write %s: %w", key, err)
	}
	if !got.Succeeded {
		return "", cluster.ErrRaced
	}
	return strconv.FormatInt(got.Header.Revision, 10), nil
}
