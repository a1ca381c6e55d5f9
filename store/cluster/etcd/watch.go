package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	// silence bounds the time in which a stream sends nothing. etcd reports its progress every ten
	// minutes.
	silence = 15 * time.Minute
	// A server is pinged every pingInterval, and less often by pingKey for each key, so that a large
	// cluster does not load it. pingTimeout bounds the wait for the answer.
	pingInterval = 2 * time.Second
	pingKey      = time.Millisecond
	pingTimeout  = 2500 * time.Millisecond
	// steady is the duration of a stream after which the next attempt begins at once.
	steady = 10 * time.Second
)

// errCompacted means that a list is needed, for example because etcd has compacted the later changes. errLost is the one
// for another etcd, or one that was restored from a backup. errAgain is the one that the consumer has requested.
var (
	errCompacted = errors.New("etcd's history begins later")
	errLost      = fmt.Errorf("etcd has another history: %w", errCompacted)
	errAgain     = fmt.Errorf("the keys have another meaning now: %w", errCompacted)
)

// entry is a key that is watched, by its name.
type entry struct {
	name string
	keyValue
}

// consumer is what a watch is for: the nodes, or the texts of a collection.
type consumer interface {
	cluster.Follower[entry]
	// current is called about every ten minutes, when all changes until then are known.
	current()
}

// watch follows the keys that begin with a prefix.
type watch struct {
	c *client
	// what is the name of the keys in errors.
	what, prefix string
	// name returns the name of a key, or false for one that the consumer does not get.
	name func(key []byte) (string, bool)
	to   consumer
	// names are those of the present keys, and count is their number. A key that the consumer does not get is its own name.
	names map[string]bool
	count atomic.Int64
	// at is the last revision whose changes are all known, unless a list is needed.
	at              int64
	listed          bool
	clusterID, term uint64
	// reported is true if the keys were reported after the list, so that the start of the stream does
	// not report them again.
	reported bool
	history  history
	// lost is true if the next list, or the one that is being reported, is that of an etcd that lost its data.
	lost bool
	// again is true if the consumer needs all keys again.
	again bool
}

// run reports the keys and their changes. It returns ctx's error.
func (w *watch) run(ctx context.Context) error {
	var wait web.Backoff
	for {
		since := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(since) > steady || errors.Is(err, errAgain) {
			wait.Reset()
		}
		if !errors.Is(err, errCompacted) {
			w.to.Failed(fmt.Errorf("watch %s: %w", w.what, err))
			w.c.next()
		}
		if err := wait.Wait(ctx, 0); err != nil {
			return err
		}
	}
}

// follow lists if necessary, and follows the stream until it ends.
func (w *watch) follow(ctx context.Context) error {
	if err := w.c.ping(ctx, w.c.endpoint()); err != nil {
		return err
	}
	if !w.listed {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	err := w.stream(ctx)
	w.reported = false
	if errors.Is(err, errCompacted) {
		w.listed, w.lost = false, w.lost || errors.Is(err, errLost)
	}
	return err
}

// list reports all keys.
func (w *watch) list(ctx context.Context) error {
	var names map[string]bool
	var known history
	h, err := w.c.list(ctx, w.prefix, func() { names, known = map[string]bool{}, history{} }, func(kv keyValue) {
		known.wrote(kv)
		name, ok := w.nameOf(kv.Key)
		names[name] = true
		if ok {
			w.to.Put(entry{name, kv}, true)
		}
	})
	if err != nil {
		return err
	}
	if len(names) == 0 {
		known.event = h.Revision
	}
	w.lost = w.lost || w.clusterID != 0 && (h.ClusterID != w.clusterID || h.RaftTerm < w.term || h.Revision < w.at)
	w.history, w.names = known, names
	w.at, w.listed, w.clusterID, w.term, w.reported = h.Revision, true, h.ClusterID, h.RaftTerm, true
	w.to.Complete(names)
	w.lost = false
	return nil
}

// nameOf returns the name of a key, and whether the consumer gets it.
func (w *watch) nameOf(key []byte) (string, bool) {
	if name, ok := w.name(key); ok {
		return name, true
	}
	return string(key), false
}

// stream follows the changes after w.at.
func (w *watch) stream(ctx context.Context) error {
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	endpoint := w.c.endpoint()
	w.count.Store(int64(len(w.names)))
	pinging.Go(func() { cancel(w.keepPinging(ctx, endpoint)) })
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("%w: etcd sent nothing for %v", cluster.ErrUnavailable, silence)) })
	defer quiet.Stop()
	resp, err := w.c.send(ctx, endpoint, "/v3/watch", watchRequest{Create: watchCreate{
		Key: []byte(w.prefix), RangeEnd: end(w.prefix), StartRevision: w.from(), ProgressNotify: true, Fragment: true,
	}})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	// The body is not read to its end, because the stream has no end.
	defer resp.Body.Close()
	messages := web.NewStream(resp.Body, maxReply)
	for first := true; ; first = false {
		var m watchMessage
		if err := messages.Decode(&m); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		quiet.Reset(silence)
		if m.Error != nil {
			return m.Error
		}
		if m.Result == nil {
			continue
		}
		if err := w.apply(ctx, m.Result, first); err != nil {
			return err
		}
	}
}

// keepPinging pings a server until it does not answer or ctx ends. It returns the error.
func (w *watch) keepPinging(ctx context.Context, endpoint string) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(pingInterval, time.Duration(w.count.Load())*pingKey)):
		}
		if err := w.c.ping(ctx, endpoint); err != nil {
			return err
		}
	}
}

// apply applies a message of the stream.
func (w *watch) apply(ctx context.Context, m *watchResponse, first bool) error {
	switch {
	case m.Canceled && m.CompactRevision > 0:
		return errCompacted
	case m.Canceled:
		// The reason may be a refused token.
		w.c.forget(w.c.current())
		return fmt.Errorf("%w: etcd ended the watch: %s", cluster.ErrUnavailable, (&failure{Message: m.CancelReason}).Error())
	case m.Header.ClusterID != w.clusterID || m.Header.RaftTerm < w.term || first && m.Header.Revision < w.at:
		return errLost
	case first && !w.reported:
		// The registry can be reached again.
		if err := w.checkHistory(ctx); err != nil {
			return err
		}
		w.to.Recovered()
	}
	w.term = m.Header.RaftTerm
	for _, e := range m.Events {
		w.change(e)
		if w.again {
			w.again = false
			return errAgain
		}
	}
	w.count.Store(int64(len(w.names)))
	if n := len(m.Events); n == 0 && !m.Created { // etcd's progress
		w.at = max(w.at, m.Header.Revision)
		w.to.current()
	} else if n > 0 && !m.Fragment {
		w.at = max(w.at, m.Events[n-1].KV.ModRevision)
	}
	return nil
}

// change reports a change of a key.
func (w *watch) change(e event) {
	name, ok := w.nameOf(e.KV.Key)
	if e.Type == "DELETE" {
		w.history.removed(e.KV)
		delete(w.names, name)
		if ok {
			w.to.Remove(name, false)
		}
		return
	}
	w.history.wrote(e.KV)
	w.names[name] = true
	if ok {
		w.to.Put(entry{name, e.KV}, false)
	}
}
