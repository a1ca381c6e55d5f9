package feed

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
)

// parties is the number of processes that call Current at once.
const parties = 24

// together runs processes that call Current at once, and counts their outputs by text.
func (w *world) together(t *testing.T) map[string]int {
	t.Helper()
	var mu sync.Mutex
	said := map[string]int{}
	var wg sync.WaitGroup
	for range parties {
		wg.Go(func() {
			out, err := process(t.Context(), w.dir, "one", w.url).CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			said[fmt.Sprintf("%s%v", out, err)]++
		})
	}
	wg.Wait()
	return said
}

// Of many processes one sends a request, and all get its answer.
func TestProcesses(t *testing.T) {
	w := newWorld(t)
	arrived := make(chan struct{}, parties)
	release := make(chan struct{})
	w.handle(func(rw http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		fmt.Fprint(rw, document(first))
	})
	go func() {
		<-arrived
		close(release)
	}()
	if said := w.together(t); said["revision 1\n<nil>"] != parties || w.asked.Load() != 1 {
		t.Errorf("%d requests: %v", w.asked.Load(), said)
	}
	// No process sends another request within the interval.
	if said := w.together(t); said["revision 1\n<nil>"] != parties || w.asked.Load() != 1 {
		t.Errorf("%d requests: %v", w.asked.Load(), said)
	}
}

// One process sends a request to a cloud that throttles or is dead, and all get its error.
func TestProcessesFail(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"throttles": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Retry-After", "60")
			rw.WriteHeader(http.StatusTooManyRequests)
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.handle(serve)
			said := w.together(t)
			if len(said) != 1 || w.asked.Load() != 1 {
				t.Errorf("%d requests: %v", w.asked.Load(), said)
			}
			for text := range said {
				if !strings.HasPrefix(text, "try again later: azure: ") || !strings.Contains(text, "unavailable") {
					t.Error(text)
				}
			}
		})
	}
}

// If a process dies during its request, no other process waits for it: without a known
// reply the next process sends a request.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	arrived := make(chan struct{})
	var once sync.Once
	w.handle(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(arrived) })
		<-r.Context().Done()
	})
	p := process(t.Context(), w.dir, "one", w.url)
	p.Stdout = os.Stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	w.answers(first)
	out, err := process(t.Context(), w.dir, "one", w.url).CombinedOutput()
	if err != nil || string(out) != "revision 1\n" {
		t.Errorf("%s, %v", out, err)
	}
}
