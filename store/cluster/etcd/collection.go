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
func (r *Registry) Collection(name string) cluster.Collection {
	return collection{r.c, r.o.Prefix + "-" + name + "/"}
}

// List reads some keys after the others. Each reply has its own revision.
func (l collection) List(ctx context.Context, each func(name string, text []byte, version string)) error {
	ask := rangeRequest{Key: []byte(l.prefix), RangeEnd: end(l.prefix), Limit: page / 10}
	for count := 0; ; {
		var got rangeResponse
		if err := l.c.call(ctx, "/v3/kv/range", ask, &got); err != nil {
			return fmt.Errorf("list %s: %w", l.prefix, err)
		}
		for _, kv := range got.KVs {
			if name, ok := cluster.CutPageName(l.prefix, string(kv.Key)); ok {
				each(name, kv.Value, strconv.FormatInt(kv.ModRevision, 10))
			}
		}
		count += len(got.KVs)
		if count > maxNodes {
			return fmt.Errorf("list: %w: more than %d keys below %s", cluster.ErrInvalid, maxNodes, l.prefix)
		}
		if !got.More || len(got.KVs) == 0 {
			return nil
		}
		ask.Key = append(got.KVs[len(got.KVs)-1].Key, 0)
	}
}

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
