package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

func TestLockAttachmentExcludes(t *testing.T) {
	s := newStore(t)
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				l, err := s.LockAttachment(t.Context(), key("net", "c1"))
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				l.Unlock()
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d inside at once", most.Load())
	}
}

// Waited is called for every wait, whether or not the lock was obtained.
func TestWaited(t *testing.T) {
	o := options(t)
	var told []string
	o.Waited = func(what string, d time.Duration) {
		if d <= 0 {
			t.Errorf("waited %v for %q", d, what)
		}
		told = append(told, what)
	}
	s := store.New(o)
	l, err := s.LockShared(t.Context(), "bridge/cni0", true)
	if err == nil {
		err = s.Update(t.Context(), func(*store.Tx) error { return nil })
	}
	if err != nil || len(told) > 0 {
		t.Fatalf("%v, told of %q, and nobody waited", err, told)
	}
	err = s.View(t.Context(), func(*store.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := s.LockShared(ctx, "bridge/cni0", false)
		if !errors.Is(err, store.ErrBusy) {
			t.Errorf("a lock that is held: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		return s.View(ctx, func(*store.Tx) error { return nil })
	})
	if !errors.Is(err, store.ErrBusy) {
		t.Errorf("a file in use: %v", err)
	}
	if want := []string{"bridge/cni0", s.Path()}; !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
	l.Unlock()
}

func TestLocksAreApart(t *testing.T) {
	s := newStore(t)
	for _, k := range []store.Key{
		{Network: "a", ContainerID: "b", IfName: "c"},
		{Network: "a\x00\x01b", ContainerID: "", IfName: "c"},
		{Network: "ab", ContainerID: "", IfName: "c"},
		{Network: "a", ContainerID: "bc", IfName: ""},
		{},
	} {
		l, ok, err := s.TryLockAttachment(t.Context(), k)
		if err != nil || !ok {
			t.Errorf("%q: %v, %v", k, ok, err)
		}
		defer l.Unlock()
	}
}

func TestLockShared(t *testing.T) {
	o := options(t)
	o.LockTimeout = time.Hour // only the context ends a wait
	s := store.New(o)
	try := func(exclusive, want bool) *store.Lock {
		t.Helper()
		l, ok, err := s.TryLockShared(t.Context(), "br0", exclusive)
		if err != nil || ok != want {
			t.Fatalf("exclusive %v: %v, %v; want %v", exclusive, ok, err, want)
		}
		return l
	}
	a := try(false, true)
	b := try(false, true)
	try(true, false)
	a.Unlock()
	a.Unlock()
	try(true, false)
	got := make(chan error)
	go func() {
		l, err := s.LockShared(context.Background(), "br0", true)
		l.Unlock()
		got <- err
	}()
	b.Unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	c := try(true, true)
	try(false, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.LockShared(ctx, "br0", false); !errors.Is(err, store.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("context: %v", err)
	}
	if _, ok, err := s.TryLockShared(t.Context(), "br1", true); err != nil || !ok {
		t.Errorf("another name: %v, %v", ok, err)
	}
	c.Unlock()
	// TryLockShared would not do: the abandoned call may get the lock for a moment.
	d, err := s.LockShared(t.Context(), "br0", true)
	if err != nil {
		t.Fatal(err)
	}
	d.Unlock()
}

// A call that waited in vain names the process that holds the lock.
func TestLockHolder(t *testing.T) {
	s := newStore(t)
	held, err := s.LockAttachment(t.Context(), key("net", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.LockAttachment(ctx, key("net", "c1"))
	if want := fmt.Sprintf("held by process %d (", os.Getpid()); !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}

// A lock on a removed file excludes no other process, so the next lock is on a new
// file.
func TestLockFileRemoved(t *testing.T) {
	o := options(t)
	s := store.New(o)
	k := key("net", "c1")
	first, err := s.LockAttachment(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *store.Lock)
	go func() {
		l, err := s.LockAttachment(context.Background(), k)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	if err := os.Rename(o.RunDir, o.RunDir+".old"); err != nil {
		t.Fatal(err)
	}
	first.Unlock()
	second := <-got
	defer second.Unlock()
	if _, err := os.Stat(filepath.Join(o.RunDir, bootA, "keys.lock")); err != nil {
		t.Error(err)
	}
	if _, ok, err := s.TryLockAttachment(t.Context(), k); ok || err != nil {
		t.Errorf("try: %v, %v", ok, err)
	}
}
