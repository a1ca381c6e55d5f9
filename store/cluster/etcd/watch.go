package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	// silence bounds the time in which a stream sends nothing. etcd reports its progress every ten
	// minutes.
	silence = 15 * time.Minute
	// A server is pinged every pingInterval, and less often by pingNode for each node, so that a large
	// cluster does not load it. pingTimeout bounds the wait for the answer.
	pingInterval = 2 * time.Second
	pingNode     = time.Millisecond
	pingTimeout  = 2500 * time.Millisecond
	// steady is the duration of a stream after which the next attempt begins at once.
	steady = 10 * time.Second
)

// configFault is the name of the configuration in Snapshot.Faults. No node has that key.
const configFault = "/config"

// errCompacted means that a list is needed, for example because etcd has compacted the later changes. errLost is the one
// for another etcd, or one that was restored from a backup. errConfig is the one for another configuration.
var (
	errCompacted = errors.New("etcd's history begins later")
	errLost      = fmt.Errorf("etcd has another history: %w", errCompacted)
	errConfig    = fmt.Errorf("the configuration has changed: %w", errCompacted)
)

// Watch reports the content of etcd and renews the lease. It returns ctx's error.
func (r *Registry) Watch(ctx context.Context, to *cluster.Relay) error {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { r.renew(ctx) })
	v := &view{r: r, relay: to}
	var wait web.Backoff
	for {
		since := time.Now()
		err := v.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(since) > steady || errors.Is(err, errConfig) {
			wait.Reset()
		}
		if !errors.Is(err, errCompacted) {
			to.Fail(err)
			r.c.next()
		}
		if err := wait.Wait(ctx, 0); err != nil {
			return err
		}
	}
}

// view is the state of one Watch: the table at a revision of an etcd cluster.
type view struct {
	r     *Registry
	relay *cluster.Relay
	table cluster.Table
	// at is the last revision whose changes are all known, unless a list is needed.
	at              int64
	listed          bool
	clusterID, term uint64
	// reported is true if the table was reported after the list, so that the start of the stream does
	// not report it again.
	reported bool
	history  history
	// faultyConfig is true if the table has the configuration's fault, which is not a record.
	faultyConfig bool
	// lost is true if the next list is that of an etcd that lost its data. grace is the end of the grace time of lost nodes.
	lost  bool
	grace time.Time
}

// follow lists if necessary, and follows the stream until it ends.
func (v *view) follow(ctx context.Context) error {
	if err := v.r.c.ping(ctx, v.r.c.endpoint()); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	if !v.listed {
		if err := v.list(ctx); err != nil {
			return err
		}
	}
	configured := v.table.Config() != nil
	if configured {
		v.r.watched.Store(&v.table)
	}
	err := v.stream(ctx)
	v.r.watched.CompareAndSwap(&v.table, nil)
	v.reported = false
	if !configured {
		v.listed = false // the records were not read
	} else if errors.Is(err, errCompacted) {
		v.listed, v.lost = false, v.lost || errors.Is(err, errLost)
	}
	return err
}

// list replaces the table. A configuration that cannot be used leaves the last one in
// force. Without a configuration the nodes that are missing stay too: etcd has lost its data, and the
// nodes publish again once the configuration is back. Until then they stay for the grace time. Before the first valid
// configuration the table stays empty, and the stream waits for another one.
func (v *view) list(ctx context.Context) error {
	var present map[string]bool
	var conf error
	var found bool
	var known history
	h, err := v.r.list(ctx, func() { present, conf, known, found = map[string]bool{}, v.r.noConfig(), history{}, false }, func(kv keyValue) {
		if string(kv.Key) == v.r.configKey() {
			known.event, found = kv.ModRevision, true
			var c *cluster.Config
			var warnings []string
			c, warnings, conf = cluster.ParseSubnetConfig(kv.Value)
			if conf == nil && v.table.SetConfig(c) {
				for _, w := range warnings {
					v.r.warn(w)
				}
			}
			return
		}
		// The configuration's key sorts before the records'.
		if name, ok := v.r.name(kv.Key); ok && v.table.Config() != nil {
			present[name] = true
			known.wrote(kv)
			v.put(name, kv.Value)
		}
	})
	switch {
	case err != nil:
		return err
	case conf != nil && v.table.Config() == nil:
		v.at, v.listed, v.clusterID, v.term, v.reported = h.Revision, true, h.ClusterID, h.RaftTerm, true
		v.history = history{event: h.Revision}
		v.relay.Fail(conf)
		return nil
	case conf != nil:
		present[configFault] = true
		v.table.Put(configFault, cluster.Node{}, conf)
	}
	v.lost = v.lost || !found || v.clusterID != 0 && (h.ClusterID != v.clusterID || h.RaftTerm < v.term || h.Revision < v.at)
	if found {
		if v.lost {
			v.lose(present)
		}
		v.forget()
		v.table.Keep(present)
		v.lost = false
	}
	v.history, v.faultyConfig = known, conf != nil
	v.at, v.listed, v.clusterID, v.term, v.reported = h.Revision, true, h.ClusterID, h.RaftTerm, true
	v.r.watched.Store(&v.table) // before the consumer acts on the snapshot
	v.relay.Put(v.table.Snapshot)
	return nil
}

// lose keeps the nodes that etcd has lost for the grace time, in which their agents publish them again.
func (v *view) lose(present map[string]bool) {
	_, _, own := v.r.held.get()
	v.grace = time.Now().Add(v.r.grace)
	if n := v.table.Lose(present, own); n > 0 {
		v.r.warn(fmt.Sprintf("etcd has lost its data or was restored: %d nodes that it does not have stay until they publish again, or for %v", n, v.r.grace))
	}
}

// forget removes lost nodes after the grace time, and reports whether there was one. It is called when all changes are
// known: while etcd cannot be reached, they may have published again.
func (v *view) forget() bool { return !time.Now().Before(v.grace) && v.table.Forget() }

func (v *view) put(name string, value []byte) bool {
	n, err := decode(name, value)
	if err == nil {
		err = n.CheckIn(v.table.Config())
	}
	return v.table.Put(name, n, err)
}

// stream follows the changes after v.at.
func (v *view) stream(ctx context.Context) error {
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	endpoint := v.r.c.endpoint()
	pinging.Go(func() { cancel(v.keepPinging(ctx, endpoint)) })
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("%w: etcd sent nothing for %v", cluster.ErrUnavailable, silence)) })
	defer quiet.Stop()
	prefix := v.r.o.Prefix + "/"
	resp, err := v.r.c.send(ctx, endpoint, "/v3/watch", watchRequest{Create: watchCreate{
		Key: []byte(prefix), RangeEnd: end(prefix), StartRevision: v.from(), ProgressNotify: true, Fragment: true,
	}})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("watch nodes: %w", err)
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
			return fmt.Errorf("watch nodes: %w: %w", cluster.ErrUnavailable, err)
		}
		quiet.Reset(silence)
		if m.Error != nil {
			return fmt.Errorf("watch nodes: %w", m.Error)
		}
		if m.Result == nil {
			continue
		}
		if err := v.apply(ctx, m.Result, first); err != nil {
			return err
		}
	}
}

// keepPinging pings a server until it does not answer or ctx ends. It returns the error.
func (v *view) keepPinging(ctx context.Context, endpoint string) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(pingInterval, time.Duration(v.table.Len())*pingNode)):
		}
		if err := v.r.c.ping(ctx, endpoint); err != nil {
			return err
		}
	}
}

// apply applies a message of the stream.
func (v *view) apply(ctx context.Context, m *watchResponse, first bool) error {
	switch {
	case m.Canceled && m.CompactRevision > 0:
		return errCompacted
	case m.Canceled:
		// The reason may be a refused token.
		v.r.c.forget(v.r.c.current())
		return fmt.Errorf("watch nodes: %w: etcd ended the watch: %s", cluster.ErrUnavailable, (&failure{Message: m.CancelReason}).Error())
	case m.Header.ClusterID != v.clusterID || m.Header.RaftTerm < v.term || first && m.Header.Revision < v.at:
		return errLost
	case first && !v.reported:
		// The registry can be reached again.
		if err := v.checkHistory(ctx); err != nil {
			return err
		}
		v.relay.Put(v.table.Snapshot)
	}
	v.term = m.Header.RaftTerm
	changed := false
	for _, e := range m.Events {
		if string(e.KV.Key) == v.r.configKey() {
			return errConfig // check every record with the new configuration
		}
		name, ok := v.r.name(e.KV.Key)
		switch {
		case !ok || v.table.Config() == nil:
		case e.Type == "DELETE":
			v.history.removed(e.KV)
			changed = v.table.Remove(name) || changed
		default:
			v.history.wrote(e.KV)
			changed = v.put(name, e.KV.Value) || changed
		}
	}
	if n := len(m.Events); n == 0 && !m.Created { // etcd's progress
		v.at = max(v.at, m.Header.Revision)
		changed = v.forget()
	} else if n > 0 && !m.Fragment {
		v.at = max(v.at, m.Events[n-1].KV.ModRevision)
	}
	if changed {
		v.relay.Put(v.table.Snapshot)
	}
	return nil
}
