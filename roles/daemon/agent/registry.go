package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// maxNetConf is more than any network configuration has.
const maxNetConf = 1 << 20

// name is this node's in the registry.
func (s *settings) name(env []string) (string, error) {
	for _, name := range []string{s.nodeName, getenv(env, "NODE_NAME")} {
		if name != "" {
			return name, nil
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this node: %w: give -node-name", err)
	}
	return strings.ToLower(name), nil
}

// readNetConf reads the network's configuration where the registry holds none.
func readNetConf(path string, warn func(string)) (*cluster.Config, error) {
	raw, err := smallfile.Read(path, maxNetConf)
	if err != nil {
		return nil, fmt.Errorf("read network configuration: %w", err)
	}
	c, warnings, err := cluster.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, w := range warnings {
		warn(w)
	}
	return c, nil
}

// news is what the registry told last. A snapshot and its configuration come
// together.
type news struct {
	snapshot  *cluster.Snapshot
	config    *cluster.Config
	configErr error
	// wishes are what people asked of this node before it was published.
	wishes cluster.Wishes
	// err tells that the registry cannot be heard.
	err error
}

// watch hears the registry until ctx ends and leaves what it tells in a.heard:
// the newest snapshot counts.
func (a *agent) watch(ctx context.Context) {
	var wait web.Backoff
	var wishes *cluster.Wishes
	for ctx.Err() == nil {
		err := a.engine.Watch(ctx, func(u cluster.Update) {
			n := news{snapshot: u.Snapshot, err: u.Err}
			if u.Snapshot != nil {
				wait.Reset()
				if n.config = u.Snapshot.Config; n.config == nil && a.engine.config == nil {
					n.config, n.configErr = a.engine.Config(ctx)
				}
				if wishes == nil {
					wishes = a.wish(ctx)
				}
				n.wishes = *wishes
			}
			a.hear(n)
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("watch ended")
		}
		a.hear(news{err: err})
		_ = wait.Wait(ctx, 0)
	}
}

// wish asks what people wish of this node, until it is known or ctx ends: an
// address that nobody wants must not be published first.
func (a *agent) wish(ctx context.Context) *cluster.Wishes {
	w, ok := a.engine.Registry.(cluster.Wisher)
	if !ok {
		return &cluster.Wishes{}
	}
	var wait web.Backoff
	for {
		wishes, err := w.Wishes(ctx)
		if err == nil {
			return &wishes
		}
		a.hear(news{err: err})
		if wait.Wait(ctx, 0) != nil {
			return &cluster.Wishes{}
		}
	}
}

// hear puts news where the loop finds it, together with what it did not take yet.
func (a *agent) hear(n news) {
	select {
	case old := <-a.heard:
		if n.snapshot == nil {
			n.snapshot, n.config, n.configErr, n.wishes = old.snapshot, old.config, old.configErr, old.wishes
		}
	default:
	}
	a.heard <- n
}

// put puts a value into a channel for one, in place of one that was not taken
// yet. There is one goroutine that does.
func put[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

const (
	// quiet is how long nothing must have been done before it is done at once again:
	// a record that somebody else keeps changing is not fought over.
	quiet = time.Minute
	// patience is how long after a failure it is tried again for a reason.
	patience = 2 * time.Second
)

// insist does what it was asked for last, again until it succeeds, until ctx ends.
// What is another wish than the last is done at once. To be asked again while it
// fails means that there is news, and to be asked again after it was done that
// somebody else undid it. No asking puts off what is due.
func insist[T any](ctx context.Context, asked <-chan T, same func(a, b T) bool, do func(context.Context, T) error) {
	wait := web.Backoff{Min: 250 * time.Millisecond, Max: 30 * time.Second}
	var what T
	var last, due time.Time
	var failed bool
	for {
		var timer <-chan time.Time
		if !due.IsZero() {
			timer = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case next := <-asked:
			at := time.Now()
			switch {
			case last.IsZero() || at.Sub(last) >= quiet || !same(what, next):
				wait.Reset()
			case failed:
				at = last.Add(patience)
			case due.IsZero():
				at = at.Add(wait.Next(0))
			default:
				at = due
			}
			if what = next; due.IsZero() || at.Before(due) {
				due = at
			}
		case <-timer:
			due, last = time.Time{}, time.Now()
			if failed = do(ctx, what) != nil; failed {
				due = time.Now().Add(wait.Next(0))
			}
		}
	}
}

// acquisition is what came of publishing this node.
type acquisition struct {
	node cluster.Node
	err  error
}

// acquire publishes this node and tells the loop what came of it.
func (a *agent) acquire(ctx context.Context, want cluster.Node) error {
	got, err := a.engine.Acquire(ctx, want)
	select {
	case a.acquired <- acquisition{got, err}:
	case <-ctx.Done():
	}
	return err
}

// announce tells the registry that the node's pod network works.
func (a *agent) announce(ctx context.Context, _ struct{}) error {
	if a.engine.silent {
		return nil
	}
	err := a.engine.Ready(ctx)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("the registry is not told yet that the pod network works", "error", err)
	}
	return err
}
