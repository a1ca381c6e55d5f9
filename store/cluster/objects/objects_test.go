package objects_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/test/await"
)

const nodes = "/api/v1/nodes"

func node(name string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]string{"a": "1"}}}
}

// inDir returns a registry in a directory, and the directory of the nodes.
func inDir(t *testing.T) (r *dir.Registry, path string) {
	t.Helper()
	path = t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := dir.Open(dir.Options{Dir: path, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return r, filepath.Join(path, "nodeipam-nodes")
}

// TestObjects: objects are made, changed and deleted as by an API server.
func TestObjects(t *testing.T) {
	server := etcdtest.Start(t)
	inEtcd, err := etcd.Open(etcd.Options{Endpoints: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inEtcd.Close() })
	files, _ := inDir(t)
	for name, r := range map[string]objects.Registry{"etcd": inEtcd, "dir": files} {
		t.Run(name, func(t *testing.T) { testObjects(t, objects.New(r)) })
	}
}

func testObjects(t *testing.T, c *objects.Client) {
	ctx := t.Context()
	var o, changed rest.Node
	if err := c.Get(ctx, nodes+"/a", &o); !errors.Is(err, rest.ErrNotFound) {
		t.Errorf("no object: %v", err)
	}
	if err := c.Patch(ctx, nodes+"/a", rest.MergePatch, node("a"), nil); !errors.Is(err, rest.ErrNotFound) {
		t.Errorf("patch of no object: %v", err)
	}
	if err := c.Create(ctx, nodes, node("a"), &o); err != nil || o.Metadata.UID == "" || o.Metadata.ResourceVersion == "" {
		t.Fatalf("%+v, %v", o, err)
	}
	if err := c.Create(ctx, nodes, node("a"), nil); !errors.Is(err, rest.ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	for _, name := range []string{"", "../a", "A"} {
		if err := c.Create(ctx, nodes, node(name), nil); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("name %q: %v", name, err)
		}
		if err := c.Delete(ctx, nodes+"/"+name); name == "A" && !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("delete %q: %v", name, err)
		}
	}
	patch := func(key, value string) error {
		return c.Patch(ctx, nodes+"/a", rest.MergePatch, map[string]any{"metadata": map[string]any{key: value, "annotations": map[string]any{"x": key}}}, &changed)
	}
	if err := patch("resourceVersion", o.Metadata.ResourceVersion); err != nil || changed.Metadata.Annotations["x"] != "resourceVersion" || changed.Metadata.UID != o.Metadata.UID {
		t.Errorf("%+v, %v", changed, err)
	}
	var read rest.Node
	if err := c.Get(ctx, nodes+"/a", &read); err != nil || read.Metadata.ResourceVersion != changed.Metadata.ResourceVersion {
		t.Errorf("version %q after the reply %q, %v", read.Metadata.ResourceVersion, changed.Metadata.ResourceVersion, err)
	}
	if err := patch("resourceVersion", o.Metadata.ResourceVersion); !errors.Is(err, rest.ErrConflict) {
		t.Errorf("an old version: %v", err)
	}
	if err := patch("uid", "other"); !errors.Is(err, rest.ErrConflict) {
		t.Errorf("another uid: %v", err)
	}
	read = rest.Node{}
	if err := c.Patch(ctx, nodes+"/a", rest.MergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"x": nil, "y": "2"}}}, &read); err != nil ||
		!maps.Equal(read.Metadata.Annotations, map[string]string{"y": "2"}) {
		t.Errorf("%+v, %v", read, err)
	}
	// No change of several writers at once is lost.
	done := make(chan error)
	const writers = 5
	for i := range writers {
		go func() {
			done <- c.Patch(ctx, nodes+"/a", rest.MergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{fmt.Sprint("w", i): ""}}}, nil)
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := c.Get(ctx, nodes+"/a", &read); err != nil || len(read.Metadata.Annotations) != 1+writers {
		t.Errorf("%+v, %v", read, err)
	}
	for range 2 {
		if err := c.Delete(ctx, nodes+"/a"); err != nil {
			t.Error(err)
		}
	}
	if err := c.Create(ctx, nodes, node("a"), &read); err != nil || read.Metadata.UID == o.Metadata.UID {
		t.Errorf("made again with uid %s: %v", read.Metadata.UID, err)
	}
}

// follower records what Follow reports.
type follower struct{ said chan string }

func (f follower) Put(o *rest.Node, listing bool) {
	f.said <- fmt.Sprint("put ", o.Metadata.Name, " ", listing)
}
func (f follower) Remove(name string, _ bool) { f.said <- "remove " + name }
func (f follower) Complete(names map[string]bool) {
	f.said <- fmt.Sprint("complete ", slices.Sorted(maps.Keys(names)))
}
func (f follower) Failed(err error) { f.said <- "failed " + err.Error() }
func (f follower) Recovered()       { f.said <- "recovered" }

// TestFollow: an object that cannot be read delays the end of the first list, and is reported. Later it stays as it was.
func TestFollow(t *testing.T) {
	r, path := inDir(t)
	c := objects.New(r)
	if err := c.Create(t.Context(), nodes, node("a"), nil); err != nil {
		t.Fatal(err)
	}
	file := func(content string) {
		t.Helper()
		hidden := filepath.Join(path, ".b")
		if err := errors.Join(os.WriteFile(hidden, []byte(content), 0o644), os.Rename(hidden, filepath.Join(path, "b.json"))); err != nil {
			t.Fatal(err)
		}
	}
	file("null")
	ctx, stop := context.WithCancel(t.Context())
	f := follower{make(chan string)}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = objects.Follow(ctx, c, nodes, f) }()
	defer func() { stop(); <-ended }()
	// expect waits for reports in order. A failure is repeated.
	expect := func(all ...string) {
		t.Helper()
		for _, want := range all {
			for got := ""; !strings.HasPrefix(got, want); {
				select {
				case got = <-f.said:
				case <-time.After(await.Patience):
					t.Fatalf("no %q", want)
				}
				if !strings.HasPrefix(got, want) && !strings.HasPrefix(got, "failed") {
					t.Fatalf("%q in place of %q", got, want)
				}
			}
		}
	}
	expect("put a true", "failed read nodes: b: invalid: it cannot be read: repair or delete it")
	for _, c := range [][2]string{
		{`{"metadata":{"name":"c","uid":"1"}}`, "metadata.name is not that of"},
		{`{"metadata":{"name":"b"}}`, "metadata.uid is missing"},
		{`{"metadata":{"name":"b","uid":{}}}`, "metadata.uid is missing"},
		{`{"metadata":[]}`, "metadata.name is not that of"},
		{`{"metadata":{"name":"b","uid":"1"},"spec":{"podCIDRs":"10.0.0.0/8"}}`, "json: cannot unmarshal"},
		{strings.Repeat("[", 20000), "it cannot be read"},
		{strings.Repeat(" ", cluster.MaxPage+1), "file too large: more than 262144 bytes: restore or delete the file"},
	} {
		file(c[0])
		await.Until(t, func() bool { got := <-f.said; return strings.Contains(got, c[1]) }, func() string { return "no report of " + c[1] })
	}
	file(`{"metadata":{"name":"b","uid":"1"}}`)
	expect("put b true", "complete [a b]", "recovered")
	file("{")
	expect("failed")
	file(`{"metadata":{"name":"b","uid":"1"}}`)
	expect("recovered")
	file(`{"metadata":{"name":"b","uid":"2"}}`)
	expect("put b false")
	if err := c.Delete(t.Context(), nodes+"/a"); err != nil {
		t.Fatal(err)
	}
	expect("remove a")
}

// script is a registry whose Watch is what a test plays.
type script struct {
	cluster.Watched
	play func(to cluster.Follower[cluster.Text])
}

func (s script) Collection(string) cluster.Watched { return s }

func (s script) Watch(_ context.Context, to cluster.Follower[cluster.Text]) error {
	s.play(to)
	return context.Canceled
}

// TestFollowLists: a later list reports removed objects first, since others may have what they had, and only what has changed. What an
// unfinished list had is not reported if it is gone.
func TestFollowLists(t *testing.T) {
	text := func(name, version string) cluster.Text {
		return cluster.Text{Name: name, Version: version, Text: fmt.Appendf(nil, `{"metadata":{"name":%q,"uid":"1"}}`, name)}
	}
	of := func(names ...string) map[string]bool {
		all := map[string]bool{}
		for _, name := range names {
			all[name] = true
		}
		return all
	}
	bad := cluster.Text{Name: "b", Err: errors.New("bad")}
	f := follower{make(chan string, 100)}
	play := script{play: func(to cluster.Follower[cluster.Text]) {
		to.Put(text("b", "1"), true)
		to.Put(text("gone", "1"), true)
		to.Failed(errors.New("down"))
		to.Put(text("a", "1"), true)
		to.Put(text("b", "1"), true)
		to.Complete(of("a", "b"))
		to.Put(text("b", "1"), false)
		to.Put(text("c", "1"), true)
		to.Put(text("b", "2"), true)
		to.Complete(of("b", "c"))
		to.Put(bad, true)
		to.Put(text("c", "1"), true)
		to.Complete(of("b", "c"))
		to.Recovered()
		to.Put(text("b", "2"), false)
		to.Remove("unknown", false)
		to.Put(bad, false)
		to.Remove("b", false)
		to.Complete(of())
	}}
	_ = objects.Follow(t.Context(), objects.New(play), nodes, f)
	close(f.said)
	var said []string
	for s := range f.said {
		said = append(said, s)
	}
	want := []string{
		"failed down", "put a true", "put b true", "complete [a b]", "recovered", "remove a", "put b false", "put c false",
		"failed read nodes: b: bad", "failed read nodes: b: bad", "recovered", "failed read nodes: b: bad", "remove b", "recovered", "remove c",
	}
	if !slices.Equal(said, want) {
		t.Errorf("reported\n%q, want\n%q", said, want)
	}
}
