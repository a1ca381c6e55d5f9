package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const nodes = "/api/v1/nodes"

// Watch follows all Node objects.
func (r *Registry) Watch(ctx context.Context, fn func(cluster.Update)) error {
	defer r.seen.Store(nil)
	return cluster.WatchWith(ctx, fn, func(ctx context.Context, relay *cluster.Relay) error {
		f := follower{registry: r, changed: make(chan struct{}, 1)}
		var wg sync.WaitGroup
		wg.Go(func() { f.report(ctx, relay) })
		defer wg.Wait()
		return f.run(ctx, relay)
	})
}

// follower has the Node objects at a version.
type follower struct {
	registry *Registry
	// version is the version from which the next watch continues. If it is empty, all objects are read
	// first.
	version string
	// noStream is true if the server cannot send all objects in a watch.
	noStream bool
	// failed is true after a report that the server cannot be reached.
	failed  bool
	changed chan struct{}

	mu    sync.Mutex
	table cluster.Table
	own   object // this node's, or zero
}

// report sends snapshots to relay. Making a snapshot takes as long as reading many changes, so only few
// are made in a burst of changes.
func (f *follower) report(ctx context.Context, relay *cluster.Relay) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
		f.mu.Lock()
		s := f.table.Snapshot()
		f.mu.Unlock()
		f.registry.seen.Store(s)
		relay.Put(s)
	}
}

func (f *follower) notify() {
	select {
	case f.changed <- struct{}{}:
	default: // a report is pending
	}
}

// run follows the objects until ctx is done.
func (f *follower) run(ctx context.Context, relay *cluster.Relay) error {
	var b web.Backoff
	for {
		answered, err := f.follow(ctx)
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
		var status *rest.StatusError
		var least time.Duration
		if errors.As(err, &status) {
			least = status.RetryAfter
		}
		if err != nil {
			f.failed = true
			relay.Fail(fmt.Errorf("watch nodes: %w", err))
		}
		if b.Wait(ctx, least) != nil {
			return ctx.Err()
		}
	}
}

// refused handles an error of the server, and reports whether to retry at once.
func (f *follower) refused(err error) bool {
	var status *rest.StatusError
	switch {
	case !errors.As(err, &status):
		return false // the connection broke, and the version is still valid
	case errors.Is(err, rest.ErrForbidden), status.Code == http.StatusTooManyRequests, status.Code == http.StatusServiceUnavailable:
		return false // it may work later
	case f.version == "" && !f.noStream:
		// The server or its store does not support streaming lists. In the second case the error is a
		// 500 inside the stream.
		f.noStream = true
		return true
	case f.version != "" && errors.Is(err, rest.ErrExpired):
		f.version = ""
		return true
	}
	f.version = "" // read everything again
	return false
}

// follow reads all objects if necessary, and then the changes until the stream ends.
// answered reports whether the server has answered.
func (f *follower) follow(ctx context.Context) (answered bool, err error) {
	since := rest.Since{Version: f.version, All: f.version == "" && !f.noStream}
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
	err = rest.Watch(ctx, f.registry.client, nodes, since, func(e rest.Event[object]) {
		o := e.Object
		if o == nil {
			if f.failed && !listing {
				f.notify() // also reports that the server can be reached again
			}
			f.failed = false
			return
		}
		version, name := o.Metadata.ResourceVersion, o.Metadata.Name
		if back = back || !listing && older(version, f.version); back {
			stop() // the server's store was restored from an earlier version: read everything again
			return
		}
		switch {
		case e.Initial:
			listing = false
			f.complete(names)
		case e.Type == "DELETED":
			delete(names, name)
			f.remove(name, !listing)
		case e.Type != "BOOKMARK":
			if listing {
				names[name] = true
			}
			f.put(o, !listing)
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

// older reports whether a version precedes another. Versions are growing numbers
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions). For other texts it
// returns false.
func older(version, than string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	t, err := strconv.ParseUint(than, 10, 64)
	return err == nil && v < t
}

// list reads all objects and returns their version.
func (f *follower) list(ctx context.Context) (string, error) {
	names := map[string]bool{}
	version, err := rest.List(ctx, f.registry.client, nodes, func(o *object) {
		names[o.Metadata.Name] = true
		f.put(o, false)
	})
	if err != nil {
		return "", err
	}
	f.complete(names)
	return version, nil
}

// complete removes all nodes that are not among names.
func (f *follower) complete(names map[string]bool) {
	f.mu.Lock()
	f.table.Keep(names)
	if !names[f.registry.name] {
		f.own = object{}
	}
	f.mu.Unlock()
	f.notify()
}

// put stores an object. With notify it reports a change.
func (f *follower) put(o *object, notify bool) {
	r := f.registry
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := false
	if r.keys.takesPart(o) {
		n, err := r.node(o)
		changed = f.table.Put(o.Metadata.Name, n, err)
	} else {
		changed = f.table.Remove(o.Metadata.Name)
	}
	if o.Metadata.Name == r.name {
		changed = changed || !r.same(o, &f.own)
		f.own = *o
	}
	if changed && notify {
		f.notify()
	}
}

// same reports whether the fields that Acquire reads are equal in two objects. The agent may be waiting
// for a difference.
func (r *Registry) same(o, p *object) bool {
	for _, key := range append(r.keys.own(), r.keys.nodeIP, r.keys.nodeIPv6, r.keys.publishIP, r.keys.publishIPv6) {
		if o.Metadata.Annotations[key] != p.Metadata.Annotations[key] {
			return false
		}
	}
	return o.Metadata.UID == p.Metadata.UID && o.Spec.PodCIDR == p.Spec.PodCIDR && slices.Equal(o.Spec.PodCIDRs, p.Spec.PodCIDRs)
}

func (f *follower) remove(name string, notify bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.table.Remove(name)
	if name == f.registry.name {
		changed, f.own = true, object{}
	}
	if changed && notify {
		f.notify()
	}
}
