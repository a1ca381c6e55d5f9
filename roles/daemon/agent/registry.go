package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/daemon/process"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// maxNetConf is the maximum size of a network configuration in bytes.
const maxNetConf = 1 << 20

// name returns this node's name in the registry.
func (s *settings) name(env []string) (string, error) {
	for _, name := range []string{s.nodeName, process.Getenv(env, "NODE_NAME")} {
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

// readNetConf reads the network's configuration from a file, for registries that do not hold one.
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

// registryUpdate is the latest state of the registry. A snapshot and its configuration belong
// together.
type registryUpdate struct {
	snapshot  *cluster.Snapshot
	config    *cluster.Config
	configErr error
	// overrides are this node's, read before the node was published.
	overrides cluster.Overrides
	// err is set if the registry cannot be read.
	err error
	// received is the time of the first snapshot that the loop has not received yet.
	received time.Time
}

// watch watches the registry until ctx ends. The newest state is in a.updates.
func (a *agent) watch(ctx context.Context) {
	var wait web.Backoff
	var overrides *cluster.Overrides
	for ctx.Err() == nil {
		err := a.registry.Watch(ctx, func(u cluster.Update) {
			n := registryUpdate{snapshot: u.Snapshot, err: u.Err}
			if u.Snapshot != nil {
				wait.Reset()
				n.config = u.Snapshot.Config
				if n.config == nil && a.registry.config == nil {
					n.config, n.configErr = a.registry.Config(ctx)
				}
				if overrides == nil {
					overrides = a.readOverrides(ctx)
				}
				n.overrides = *overrides
			}
			a.setLatest(n)
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("watch ended")
		}
		a.setLatest(registryUpdate{err: err})
		_ = wait.Wait(ctx, 0)
	}
}

// readOverrides reads this node's overrides. It retries until they are known or ctx ends, so that no
// address is published that an override replaces.
func (a *agent) readOverrides(ctx context.Context) *cluster.Overrides {
	w, ok := a.registry.Registry.(cluster.OverrideReader)
	if !ok {
		return &cluster.Overrides{}
	}
	var wait web.Backoff
	for {
		overrides, err := w.Overrides(ctx)
		if err == nil {
			return &overrides
		}
		a.setLatest(registryUpdate{err: err})
		if wait.Wait(ctx, 0) != nil {
			return &cluster.Overrides{}
		}
	}
}

// setLatest replaces the pending update. An update without a snapshot keeps the pending snapshot.
func (a *agent) setLatest(n registryUpdate) {
	n.received = time.Now()
	select {
	case old := <-a.updates:
		if n.snapshot == nil {
			n.snapshot, n.config, n.configErr, n.overrides = old.snapshot, old.config, old.configErr, old.overrides
		}
		if old.snapshot != nil {
			n.received = old.received
		}
	default:
	}
	a.updates <- n
}

// sendLatest sends a value to a channel of capacity one, in place of a pending value. Only one
// goroutine may send.
func sendLatest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

const (
	// quietPeriod is the time without an action after which the next request is executed at once. A
	// shorter distance means that another program keeps changing the record, and the requests are
	// slowed down.
	quietPeriod = time.Minute
	// newsRetryDelay is the delay between a failure and the next attempt if a new request arrives
	// meanwhile.
	newsRetryDelay = 2 * time.Second
)

// retryLatest executes the latest request and retries it until it succeeds or ctx ends. A request
// that differs from the last is executed at once. A repeated request after a failure means that
// something changed; it is executed after newsRetryDelay. A repeated request after a success means
// that another program undid it; it is delayed by the backoff. A request never delays an execution
// that is already due.
func retryLatest[T any](ctx context.Context, asked <-chan T, same func(a, b T) bool, do func(context.Context, T) error) {
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
			case last.IsZero() || at.Sub(last) >= quietPeriod || !same(what, next):
				wait.Reset()
			case failed:
				at = last.Add(newsRetryDelay)
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

// acquisition is the result of publishing this node.
type acquisition struct {
	node cluster.Node
	err  error
}

// acquire publishes this node and sends the result to the loop.
func (a *agent) acquire(ctx context.Context, want cluster.Node) error {
	got, err := a.registry.Acquire(ctx, want)
	select {
	case a.acquired <- acquisition{got, err}:
	case <-ctx.Done():
	}
	return err
}

// announce informs the registry that the node's pod network works.
func (a *agent) announce(ctx context.Context, _ struct{}) error {
	if a.registry.skipReady {
		return nil
	}
	err := a.registry.Ready(ctx)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("cannot inform the registry that the pod network works", "error", err)
	}
	return err
}
