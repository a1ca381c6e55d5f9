package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/cluster/process"
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
