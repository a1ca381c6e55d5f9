package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/await"
)

// Copy is a Follower that has the texts of a collection.
type Copy struct {
	tb testing.TB

	mu    sync.Mutex
	texts map[string]cluster.Text
	// names are those that a list has put.
	names  map[string]bool
	lists  int
	failed error
	// turn is held by a call of the watch.
	turn sync.Mutex
}

// NewCopy returns a Copy without texts.
func NewCopy(tb testing.TB) *Copy {
	return &Copy{tb: tb, texts: map[string]cluster.Text{}, names: map[string]bool{}}
}

// Follow watches a collection until the test ends.
func Follow(tb testing.TB, c cluster.Watched) *Copy {
	tb.Helper()
	f := NewCopy(tb)
	ctx, stop := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(ctx, f) }()
	tb.Cleanup(func() {
		stop()
		if err := await.Next(tb, ended, "the watch does not end"); !errors.Is(err, context.Canceled) {
			tb.Errorf("watch returned %v, not the context's error", err)
		}
	})
	return f
}

func (f *Copy) do(fn func()) {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

// Hold makes the follower slow: a call of the watch waits until release is called.
func (f *Copy) Hold() (release func()) {
	f.turn.Lock()
	return f.turn.Unlock
}

// Put stores a text.
func (f *Copy) Put(t cluster.Text, listing bool) {
	f.do(func() {
		if !listing && f.lists == 0 {
			f.tb.Errorf("%s was put before the first list was complete", t.Name)
		}
		if (t.Err != nil) != (t.Text == nil) || (t.Err != nil) != (t.Version == "") || cluster.CheckName(t.Name) != nil {
			f.tb.Errorf("%+v", t)
		}
		f.texts[t.Name], f.names[t.Name] = t, true
	})
}

// Remove removes a text.
func (f *Copy) Remove(name string, _ bool) { f.do(func() { delete(f.texts, name) }) }

// Complete removes the other texts.
func (f *Copy) Complete(names map[string]bool) {
	f.do(func() {
		for name := range names {
			if cluster.CheckName(name) == nil && !f.names[name] {
				f.tb.Errorf("the list has %q, which was not put", name)
			}
		}
		maps.DeleteFunc(f.texts, func(name string, _ cluster.Text) bool { return !names[name] })
		f.lists++
		f.failed = nil
		clear(f.names)
	})
}

// Failed stores the error.
func (f *Copy) Failed(err error) { f.do(func() { f.failed = err; clear(f.names) }) }

// Recovered removes the error.
func (f *Copy) Recovered() { f.do(func() { f.failed = nil }) }

// Until waits until the watch is connected and the texts are as is says.
func (f *Copy) Until(what string, is func(texts map[string]cluster.Text) bool) {
	f.tb.Helper()
	await.Until(f.tb, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.lists > 0 && f.failed == nil && is(f.texts)
	}, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return fmt.Sprintf("no %s: %d texts after %d lists, %v: %.500q", what, len(f.texts), f.lists, f.failed, fmt.Sprint(f.texts))
	})
}

// Fails waits for the report that the registry cannot be reached.
func (f *Copy) Fails() {
	f.tb.Helper()
	await.Until(f.tb, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.failed != nil }, func() string { return "no failure was reported" })
}

// Equal waits until a copy has the texts and versions that the collection has.
func (f *Copy) Equal(c cluster.Collection) {
	f.tb.Helper()
	want := map[string]string{}
	if err := c.List(f.tb.Context(), func(name string, text []byte, version string) { want[name] = string(text) + " " + version }); err != nil {
		f.tb.Fatal(err)
	}
	f.Until("copy of the list", func(texts map[string]cluster.Text) bool {
		is := map[string]string{}
		for name, t := range texts {
			is[name] = string(t.Text) + " " + t.Version
		}
		return maps.Equal(is, want)
	})
}

// watched: the followers of a collection see what each node writes, also after an outage, and if they are slow.
func watched(t *testing.T, w *World) {
	open := func(i int) cluster.Watched {
		t.Helper()
		r := w.open(t, nodeName(i))
		t.Cleanup(func() { _ = r.Close() })
		if r, is := r.(interface {
			Collection(name string) cluster.Watched
		}); is {
			return r.Collection("watched")
		}
		return nil
	}
	c, other := open(1), open(2)
	if c == nil {
		return // nothing watches a collection in Kubernetes
	}
	put := func(c cluster.Collection, name, text string) (version string) {
		t.Helper()
		_, version, err := c.Read(t.Context(), name)
		if err == nil {
			var b []byte
			if text != "" {
				b = []byte(text)
			}
			version, err = c.Write(t.Context(), name, b, version)
		}
		if err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
		return version
	}
	put(c, "before", "1")
	first, slow := Follow(t, c), Follow(t, other)
	both := func() { t.Helper(); first.Equal(c); slow.Equal(other) }
	both()
	old := put(other, "a", "1")
	both()
	put(c, "a", "2")
	both()
	if _, err := other.Write(t.Context(), "a", []byte("3"), old); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("a raced write: %v", err)
	}
	put(c, "before", "")
	both()

	release := slow.Hold()
	const writes, names = 1000, 50
	for i := range writes {
		text := strconv.Itoa(i)
		if i%7 == 0 && i > names {
			text = ""
		}
		put([]cluster.Watched{c, other}[i%2], fmt.Sprintf("burst-%d", i%names), text)
	}
	first.Equal(c)
	release()
	both()

	w.Text(t, "watched", "garbage", []byte{0, 0xff, '{'})
	w.Text(t, "watched", "large", bytes.Repeat([]byte("x"), cluster.MaxPage+1))
	w.Text(t, "watched", "No Name", []byte("{}"))
	for _, f := range []*Copy{first, slow} {
		f.Until("garbage", func(texts map[string]cluster.Text) bool {
			return string(texts["garbage"].Text) == "\x00\xff{" && errors.Is(texts["large"].Err, cluster.ErrInvalid)
		})
	}
	w.Text(t, "watched", "large", []byte("small"))
	put(other, "garbage", "")
	both()

	up := w.Down(t)
	first.Fails()
	slow.Fails()
	up()
	both()
	put(c, "after", "1")
	put(other, "a", "")
	both()
}
