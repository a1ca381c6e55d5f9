package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// configName is the name of the configuration in a watch and in Snapshot.Faults. No node has it.
const configName = "/config"

// Watch reports the content of etcd and renews the lease. It returns ctx's error.
func (r *Registry) Watch(ctx context.Context, to *cluster.Relay) error {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { r.renew(ctx) })
	defer r.watched.Store(nil)
	return newView(r, to).watch.run(ctx)
}

// view is the table of one Watch.
type view struct {
	cluster.View
	r     *Registry
	watch *watch
	// lost is true until an etcd that lost its data has a configuration. grace is the end of the grace time of lost nodes.
	lost  bool
	grace time.Time
}

func newView(r *Registry, to *cluster.Relay) *view {
	v := &view{View: cluster.View{Relay: to, Config: configName, Warn: r.o.Warn}, r: r}
	v.watch = &watch{c: r.c, what: "nodes", prefix: r.o.Prefix + "/", name: r.watchName, to: v}
	return v
}

// watchName returns the name of the configuration or of a node.
func (r *Registry) watchName(key []byte) (string, bool) {
	if string(key) == r.configKey() {
		return configName, true
	}
	name, ok := r.name(key)
	return name, ok && !strings.HasPrefix(name, "/")
}

// Put stores a record or the configuration. The configuration's key sorts before the records'.
func (v *view) Put(e entry, listing bool) {
	switch {
	case e.name != configName:
		n, err := decode(e.name, e.Value)
		v.PutRecord(e.name, n, err, listing)
	case listing:
		v.r.watched.Store(nil) // the table is not of one revision until Complete
		v.Configure(cluster.ParseSubnetConfig(e.Value))
	default:
		v.reconfigure()
	}
}

// reconfigure has all records checked again with another configuration.
func (v *view) reconfigure() {
	v.r.watched.Store(nil)
	v.watch.again = true
}

// Remove removes a record or the configuration.
func (v *view) Remove(name string, listing bool) {
	if name == configName {
		v.reconfigure()
		return
	}
	v.View.Remove(name, listing)
}

// Complete removes the other nodes. Without a configuration they stay: etcd has lost its data, and the
// nodes publish again once the configuration is back. Until then they stay for the grace time.
func (v *view) Complete(names map[string]bool) {
	found := names[configName]
	if !found {
		v.Configure(nil, nil, v.r.noConfig())
	}
	v.lost = v.lost || v.watch.lost || !found
	if found {
		if v.lost {
			v.lose(names)
		}
		v.forget()
		v.Table.Keep(names)
		v.lost = false
	}
	v.Recovered()
}

// Failed reports that etcd cannot be reached.
func (v *view) Failed(err error) {
	v.r.watched.Store(nil)
	v.View.Failed(err)
}

// Recovered reports the table.
func (v *view) Recovered() {
	if v.Table.Config() != nil {
		v.r.watched.Store(&v.Table) // before the consumer acts on the snapshot
	}
	v.View.Recovered()
}

// lose keeps the nodes that etcd has lost for the grace time, in which their agents publish them again.
func (v *view) lose(present map[string]bool) {
	_, _, own := v.r.held.get()
	v.grace = time.Now().Add(v.r.grace)
	if n := v.Table.Lose(present, own); n > 0 {
		v.r.warn(fmt.Sprintf("etcd has lost its data or was restored: %d nodes that it does not have stay until they publish again, or for %v", n, v.r.grace))
	}
}

// current removes lost nodes after the grace time. While etcd cannot be reached, they may have published again.
func (v *view) current() { v.Changed(v.forget(), false) }

func (v *view) forget() bool { return !time.Now().Before(v.grace) && v.Table.Forget() }
