package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Follow reads all objects and then every change until ctx ends. The names are those of Metadata.Key. It retries after errors, and reads
// all objects again if changes may have been missed.
func Follow[P Kind](ctx context.Context, c *Client, path string, to cluster.Follower[P]) error {
	return FollowWhere(ctx, c, path, nil, to)
}

// FollowWhere is Follow of the objects that the parameters fieldSelector and labelSelector select.
func FollowWhere[P Kind](ctx context.Context, c *Client, path string, where url.Values, to cluster.Follower[P]) error {
	f := follow[P]{client: c, path: path, where: where, to: to}
	return f.run(ctx)
}

// absentTime is the pause before the next request for a kind of object that the server does not have.
const absentTime = 30 * time.Second

// follow is a run of Follow.
type follow[P Kind] struct {
	client *Client
	path   string
	where  url.Values
	to     cluster.Follower[P]
	// version is the version from which the next watch continues. If it is empty, all objects are read
	// first.
	version string
	// noStream is true if the server cannot send all objects in a watch.
	noStream bool
	// failed is true after a report that the server cannot be reached.
	failed bool
}

func (f *follow[P]) run(ctx context.Context) error {
	var b web.Backoff
	for {
		answered, err := f.watch(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case answered:
			b.Reset()
			if err == nil {
				continue // the server ended the watch at its normal end
			}
		case err == nil:
			// A server sends bookmarks every minute. This one sends nothing, because its store was
			// restored to an earlier version than the requested one.
			f.version = ""
		}
		if f.refused(err) {
			continue
		}
		var status *StatusError
		var least time.Duration
		if errors.As(err, &status) {
			least = status.RetryAfter
		}
		if errors.Is(err, ErrNotFound) {
			least = max(least, absentTime)
		}
		if err != nil {
			f.failed = true
			f.to.Failed(fmt.Errorf("watch %s: %w", path.Base(f.path), err))
		}
		if b.Wait(ctx, least) != nil {
			return ctx.Err()
		}
	}
}

// refused handles an error of the server, and reports whether to retry at once.
func (f *follow[P]) refused(err error) bool {
	var status *StatusError
	switch {
	case !errors.As(err, &status):
		return false // the connection broke, and the version is still valid
	case errors.Is(err, ErrForbidden), status.Code == http.StatusTooManyRequests, status.Code == http.StatusServiceUnavailable:
		return false // it may work later
	case f.version == "" && !f.noStream:
		// The server or its store does not support streaming lists. In the second case the error is a
		// 500 inside the stream.
		f.noStream = true
		return true
	case f.version != "" && errors.Is(err, ErrExpired):
		f.version = ""
		return true
	}
	f.version = "" // read everything again
	return false
}

// watch reads all objects if necessary, and then the changes until the stream ends.
// answered reports whether the server has answered.
func (f *follow[P]) watch(ctx context.Context) (answered bool, err error) {
	since := Since{Version: f.version, All: f.version == "" && !f.noStream, Where: f.where}
	listing := since.All
	if f.version == "" && f.noStream {
		since.Version, err = f.list(ctx)
		if err != nil {
			return false, err
		}
		f.version, answered = since.Version, true
	}
	names := map[string]bool{}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	back := false
	err = Watch(ctx, f.client, f.path, since, func(e Event[P]) {
		if e.Type == Opened {
			if f.failed && !listing {
				f.to.Recovered()
			}
			f.failed = false
			return
		}
		meta := &e.Object.object().Metadata
		version, name := meta.ResourceVersion, meta.Key()
		if back = back || !listing && Older(version, f.version); back {
			stop() // the server's store was restored from an earlier version: read everything again
			return
		}
		switch {
		case e.Initial:
			listing = false
			f.to.Complete(names)
			names = nil
		case e.Type == "DELETED":
			delete(names, name)
			f.to.Remove(name, listing)
		case e.Type != "BOOKMARK":
			if listing {
				names[name] = true
			}
			f.to.Put(e.Object, listing)
		}
		if !listing && version != "" {
			f.version, answered = version, true
		}
	})
	if back {
		f.version = ""
		return false, nil
	}
	return answered, err
}

// Older reports whether a version precedes another. Versions are growing numbers
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions). For other texts it
// returns false.
func Older(version, than string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	t, err := strconv.ParseUint(than, 10, 64)
	return err == nil && v < t
}

// list reads all objects and returns their version.
func (f *follow[P]) list(ctx context.Context) (string, error) {
	names := map[string]bool{}
	version, err := ListWhere(ctx, f.client, f.path, f.where, func(o P) {
		names[o.object().Metadata.Key()] = true
		f.to.Put(o, true)
	})
	if err != nil {
		return "", err
	}
	f.to.Complete(names)
	return version, nil
}
