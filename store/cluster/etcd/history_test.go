package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
)

// subnetKey returns the key of the i-th node.
func subnetKey(i int) string { return fmt.Sprintf("%s/subnets/10.244.%d.0-24", DefaultPrefix, i) }

// Watch lists again after a restore from a backup, also if the restored store has reached the known
// revision and number of elections.
func TestRestored(t *testing.T) {
	const record, another = `{"PublicIP":"192.0.2.1"}`, `{"PublicIP":"192.0.2.2"}`
	elsewhere := func(a admin, n int) {
		for range n {
			a.put("/elsewhere", "x", 0)
		}
	}
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	a.put(subnetKey(60), record, 0)
	server.Kill()
	copied := server.Data + ".copy"
	if err := os.CopyFS(copied, os.DirFS(server.Data)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		elections int
		// lost are the writes after the backup, and found are those to the restored store.
		lost, found func(a admin)
		anew        bool
	}{
		"earlier":                {elections: 1, lost: func(a admin) { a.put(subnetKey(61), record, 0) }, found: func(admin) {}},
		"made anew, gone on":     {elections: 1, lost: func(a admin) { a.put(subnetKey(61), record, 0) }, anew: true, found: func(a admin) { a.put(subnetKey(60), record, 0); elsewhere(a, 40) }},
		"another node came":      {lost: func(a admin) { a.put(subnetKey(61), record, 0) }, found: func(a admin) { a.put(subnetKey(62), record, 0); elsewhere(a, 40) }},
		"one came as another":    {lost: func(a admin) { a.put(subnetKey(61), record, 0) }, found: func(a admin) { a.put(subnetKey(61), another, 0); elsewhere(a, 40) }},
		"one changed":            {lost: func(a admin) { elsewhere(a, 20) }, found: func(a admin) { a.put(subnetKey(60), another, 0); elsewhere(a, 40) }},
		"one went":               {lost: func(a admin) { elsewhere(a, 20) }, found: func(a admin) { a.remove(subnetKey(60)); elsewhere(a, 40) }},
		"one did not go":         {lost: func(a admin) { a.remove(subnetKey(60)); elsewhere(a, 20) }, found: func(a admin) { elsewhere(a, 40) }},
		"nothing, and gone back": {lost: func(a admin) { elsewhere(a, 20) }, found: func(admin) {}},
	} {
		t.Run(name, func(t *testing.T) {
			defer server.Kill()
			a := admin{t, a.c}
			put := func(anew bool) {
				t.Helper()
				server.Kill()
				err := os.RemoveAll(server.Data)
				if err == nil && !anew {
					err = os.CopyFS(server.Data, os.DirFS(copied))
				}
				if err != nil {
					t.Fatal(err)
				}
				server.Up(t)
			}
			put(false)
			for range c.elections {
				server.Kill()
				server.Up(t)
			}
			c.lost(a)
			r := open(t, Options{Endpoints: []string{server.URL}})
			r.grace = 0
			v := newView(r, &cluster.Relay{})
			if err := v.watch.list(t.Context()); err != nil {
				t.Fatal(err)
			}
			put(c.anew)
			if c.anew {
				a.put(DefaultPrefix+"/config", article, 0)
			}
			c.found(a)
			r.c.web.CloseIdle()
			v.watch.reported = false // as after messages of the stream
			now := newView(r, &cluster.Relay{})
			if err := now.watch.list(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for ctx.Err() == nil {
					_ = v.watch.follow(ctx)
				}
			}()
			want := now.Table.Snapshot().Nodes
			await.Until(t, func() bool { return slices.EqualFunc(v.Table.Snapshot().Nodes, want, (*cluster.Node).Same) }, func() string {
				return fmt.Sprintf("etcd has %d nodes, and the view %d, or others", len(want), len(v.Table.Snapshot().Nodes))
			})
			stop()
			<-ended
		})
	}
}

// For an etcd that was only unreachable the history is the same, and the stream continues.
func TestSameHistory(t *testing.T) {
	const record = `{"PublicIP":"192.0.2.1"}`
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	v := newView(r, &cluster.Relay{})
	for _, c := range []struct {
		what  string
		write func()
		knows int
	}{
		{"nothing", func() {}, 0},
		{"a node", func() { a.put(subnetKey(60), record, 0) }, 1},
		{"another", func() { a.put(subnetKey(61), record, a.grant(600)) }, 2},
		{"the last one removed", func() { a.remove(subnetKey(61)) }, 1},
		{"a key that is not a record", func() { a.put(subnetKey(62)+"/x", "{", 0) }, 2},
		{"two at once", func() {
			a.do("/v3/kv/txn", txnRequest{Success: []operation{
				{Put: &putRequest{Key: []byte(subnetKey(64)), Value: []byte(record)}}, {Put: &putRequest{Key: []byte(subnetKey(63)), Value: []byte(record)}},
			}}, &txnResponse{})
		}, 4},
		{"one of them removed", func() { a.remove(subnetKey(63)) }, 3},
	} {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.watch.follow(ctx) }()
		c.write()
		await.Until(t, func() bool { return r.watched.Load() != nil && v.Table.Len() == c.knows }, func() string {
			return fmt.Sprintf("%s: %+v", c.what, v.Table.Snapshot())
		})
		stop()
		if err := <-ended; errors.Is(err, errCompacted) {
			t.Fatalf("%s: %v", c.what, err)
		}
		a.put("/elsewhere", "x", 0)
		server.Kill()
		server.Up(t)
		r.c.web.CloseIdle()
		if err := v.watch.checkHistory(t.Context()); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
