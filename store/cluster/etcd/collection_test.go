package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
)

// put writes a text, or deletes it if text is nil.
func put(t *testing.T, c cluster.Collection, name string, text []byte) {
	t.Helper()
	_, version, err := c.Read(t.Context(), name)
	if err == nil {
		_, err = c.Write(t.Context(), name, text, version)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A watch of a collection that missed compacted changes lists again, and reports what was deleted meanwhile.
func TestCollectionCompacted(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	r := open(t, Options{Endpoints: []string{server.URL}})
	c := r.Collection("texts")
	put(t, c, "deleted", []byte("1"))
	put(t, c, "stays", []byte("1"))
	copied := clustertest.NewCopy(t)
	w := collection{r.c, r.o.Prefix + "-texts/"}.watch(copied)
	if err := w.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied.Equal(c)
	put(t, c, "deleted", nil)
	put(t, c, "stays", []byte("2"))
	now := a.list(DefaultPrefix).Header.Revision
	a.do("/v3/kv/compaction", map[string]any{"revision": fmt.Sprint(now), "physical": true}, &struct{}{})
	if err := w.follow(t.Context()); !errors.Is(err, errCompacted) {
		t.Fatal(err)
	}
	if err := w.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied.Equal(c)
}

// After the loss of its data etcd has no text, also if it reaches the known revision, and the watch continues with new ones.
func TestCollectionLost(t *testing.T) {
	server := etcdtest.Start(t)
	c := open(t, Options{Endpoints: []string{server.URL}}).Collection("texts")
	for i := range 5 {
		put(t, c, fmt.Sprint("old-", i), []byte("1"))
	}
	copied := clustertest.Follow(t, c)
	copied.Equal(c)
	release := copied.Hold() // the report of the outage waits, so that the watch does not see the first writes
	server.Kill()
	if err := os.RemoveAll(server.Data); err != nil {
		t.Fatal(err)
	}
	server.Up(t)
	for i := range 5 {
		put(t, c, fmt.Sprint("new-", i), []byte("1"))
	}
	release()
	copied.Equal(c)
	put(t, c, "new-5", []byte("1"))
	copied.Equal(c)
}

// A reply with many large texts exceeds the bound of a reply. The texts are read one by one then.
func TestCollectionLarge(t *testing.T) {
	server := etcdtest.Start(t)
	c := open(t, Options{Endpoints: []string{server.URL}}).Collection("texts")
	for i := range 60 {
		put(t, c, fmt.Sprint("text-", i), bytes.Repeat([]byte{byte(i)}, cluster.MaxPage))
	}
	clustertest.Follow(t, c).Equal(c)
}

// A stream that ends between two parts of one revision is not continued: the other changes of that revision would be missed.
func TestPartOfRevision(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	r := open(t, Options{Endpoints: []string{server.URL}})
	c := r.Collection("texts")
	put(t, c, "a", []byte("1"))
	put(t, c, "b", []byte("1"))
	copied := clustertest.NewCopy(t)
	prefix := r.o.Prefix + "-texts/"
	w := collection{r.c, prefix}.watch(copied)
	if err := w.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.do("/v3/kv/txn", txnRequest{Success: []operation{
		{Put: &putRequest{Key: []byte(prefix + "a"), Value: []byte("2")}}, {Put: &putRequest{Key: []byte(prefix + "b"), Value: []byte("2")}},
	}}, &txnResponse{})
	now := a.list(prefix)
	part := watchResponse{Header: now.Header, Fragment: true, Events: []event{{KV: now.KVs[0]}}}
	if err := w.apply(t.Context(), &part, false); err != nil {
		t.Fatal(err)
	}
	w.reported = false // the stream ends
	if err := w.follow(t.Context()); !errors.Is(err, errCompacted) || errors.Is(err, errLost) {
		t.Fatal(err)
	}
	if err := w.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied.Equal(c)
}
