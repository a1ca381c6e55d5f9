package feed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

const (
	first  = "10.240.0.36"
	second = "10.240.0.37"
	third  = "10.240.0.38"
)

// No request is sent within the interval, and a different reply has another revision.
func TestInterval(t *testing.T) {
	w := newWorld(t)
	if s := w.want(t, 1, first, second); s.Revision != 1 || s.Provider != "azure" || s.Name != "azure "+w.url {
		t.Errorf("%+v", s)
	}
	w.answers(first, second, third)
	w.sleep(9 * time.Second)
	w.want(t, 1, first, second)
	w.sleep(time.Second)
	if s := w.want(t, 2, first, second, third); s.Revision != 2 {
		t.Errorf("revision %d", s.Revision)
	}
	w.sleep(time.Minute)
	if s := w.want(t, 3, first, second, third); s.Revision != 2 {
		t.Errorf("revision %d", s.Revision)
	}
	w.o.Force = true
	w.want(t, 4, first, second, third)
	w.o.Force, w.o.Interval = false, time.Hour
	w.sleep(time.Minute)
	w.want(t, 4, first, second, third)
}

// Fresh returns the reply in the store, and whether it can be used without a request.
func TestFresh(t *testing.T) {
	w := newWorld(t)
	fresh := func() (s *store.CloudSource, ok bool) {
		if err := w.Store.View(t.Context(), func(tx *store.Tx) (err error) {
			s, ok, err = w.o.Fresh(tx, w.Now())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return s, ok
	}
	if s, ok := fresh(); s != nil || ok {
		t.Error(s, ok)
	}
	w.want(t, 1, first, second)
	if s, ok := fresh(); s == nil || !ok {
		t.Error(s, ok)
	}
	w.sleep(10 * time.Second)
	if s, ok := fresh(); s == nil || ok {
		t.Error(s, ok)
	}
}

// With a known reply, no answer of the cloud is an error. A Retry-After is respected, and
// the requests to a failing cloud become less frequent.
func TestFailing(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	w.fails(429, "Retry-After", "40")
	w.sleep(10 * time.Second)
	if s := w.want(t, 2, first, second); s.Failed != 1 || s.FaultKind != "unavailable" || !strings.Contains(s.Fault, "429") {
		t.Errorf("%+v", s)
	}
	w.sleep(39 * time.Second)
	w.o.Force = true // not even then
	w.want(t, 2, first, second)
	w.o.Force = false
	for range 8 {
		w.sleep(maxBackoff)
		w.want(t, w.asked.Load()+1, first, second)
	}
	n := w.asked.Load()
	w.sleep(maxBackoff/2 - time.Second)
	w.want(t, n, first, second)
	w.answers(first)
	w.sleep(maxBackoff)
	if s := w.want(t, n+1, first); s.Failed != 0 || s.Fault != "" || !s.NotBefore.IsZero() {
		t.Errorf("%+v", s)
	}
}

// Without a known reply there is an error with advice, and the interval applies too.
func TestNothingKnown(t *testing.T) {
	w := newWorld(t)
	w.fails(503)
	w.wantError(t, 1, roles.ErrTryAgain, metadata.ErrUnavailable)
	w.wantError(t, 1, roles.ErrTryAgain, metadata.ErrUnavailable)
	w.fails(403)
	w.sleep(10 * time.Second)
	w.wantError(t, 2, roles.ErrTryAgain, metadata.ErrRefused)
	w.answers()
	w.sleep(10 * time.Second)
	if err := w.wantError(t, 3, roles.ErrExhausted, metadata.ErrNoAddresses); !strings.Contains(err.Error(), "az network nic") {
		t.Error(err)
	}
	w.handle(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "<html>") })
	w.sleep(10 * time.Second)
	w.wantError(t, 4, roles.ErrTryAgain, metadata.ErrInvalid)
	w.answers(first)
	w.sleep(10 * time.Second)
	w.want(t, 5, first)
	if _, err := Current(t.Context(), w.Host, Options{Provider: "moon"}); !errors.Is(err, roles.ErrConf) {
		t.Error(err)
	}
}

// One empty reply removes no addresses, and neither do two within an interval. A second
// one after an interval does, and the next good reply adds the addresses again.
func TestEmpty(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	w.answers()
	w.sleep(10 * time.Second)
	if s := w.want(t, 2, first, second); s.FaultKind != "no addresses" || s.EmptySince.IsZero() {
		t.Errorf("%+v", s)
	}
	w.o.Force = true
	w.sleep(time.Second)
	w.want(t, 3, first, second)
	w.o.Force = false
	w.sleep(10 * time.Second)
	w.wantError(t, 4, roles.ErrExhausted, metadata.ErrNoAddresses)
	w.answers(first)
	w.sleep(time.Minute)
	w.want(t, 5, first)
	// A failure between two empty replies does not count as a reply.
	for _, serve := range []func(){func() { w.answers() }, func() { w.fails(500) }} {
		serve()
		w.sleep(maxBackoff)
		w.want(t, w.asked.Load()+1, first)
	}
	w.answers()
	w.sleep(maxBackoff)
	w.wantError(t, w.asked.Load()+1, roles.ErrExhausted)
}

// A leased address that the cloud no longer reports is marked as withdrawn, until the
// cloud reports it again or the lease ends.
func TestWithdrawn(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	k := w.lease(t, first)
	w.lease(t, second)
	w.answers(second)
	w.sleep(10 * time.Second)
	gone := w.Now()
	addr := netip.MustParseAddr(first)
	if s := w.want(t, 2, second); len(s.Withdrawn) != 1 || !s.Withdrawn[addr].Equal(gone) {
		t.Errorf("%v", s.Withdrawn)
	}
	w.sleep(10 * time.Second)
	if s := w.want(t, 3, second); !s.Withdrawn[addr].Equal(gone) {
		t.Errorf("the mark moved: %v", s.Withdrawn)
	}
	w.answers(first, second)
	w.sleep(10 * time.Second)
	if s := w.want(t, 4, first, second); s.Withdrawn != nil {
		t.Errorf("returned: %v", s.Withdrawn)
	}
	w.answers(second)
	w.sleep(10 * time.Second)
	w.want(t, 5, second)
	if err := w.Store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.DeleteLeases(k)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.sleep(10 * time.Second)
	if s := w.want(t, 6, second); s.Withdrawn != nil {
		t.Errorf("its lease ended: %v", s.Withdrawn)
	}
}

// The last good reply outlives a reboot, also if the cloud does not answer then. The
// failures before the reboot do not.
func TestReboot(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	w.fails(429, "Retry-After", "60")
	w.sleep(10 * time.Second)
	w.want(t, 2, first, second)
	w.boot(t, "two")
	if s, err := Known(t.Context(), w.Host, w.o.Source()); err != nil || s.Failed != 0 || !s.NotBefore.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	w.want(t, 3, first, second)
	w.boot(t, "three")
	w.answers(third)
	w.want(t, 4, third)
	if _, err := Known(t.Context(), w.Host, "moon"); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}

// A clock that was set back does not delay requests.
func TestClock(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	w.sleep(-24 * time.Hour)
	w.want(t, 2, first, second)
	w.fails(429, "Retry-After", "60")
	w.sleep(10 * time.Second)
	w.want(t, 3, first, second)
	w.sleep(-time.Hour)
	w.want(t, 4, first, second)
}

// During a request of one process, others continue with the known reply.
func TestOthersGoOn(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	arrived, answer := w.hold(document(third))
	w.sleep(10 * time.Second)
	patient := w.o
	patient.Patient = true
	var wg sync.WaitGroup
	wg.Go(func() {
		if s, err := Current(t.Context(), w.Host, patient); err != nil {
			t.Error(err)
		} else {
			w.compare(t, s, third)
		}
	})
	<-arrived
	for _, w.o.Force = range []bool{false, true, false, true} {
		w.want(t, 2, first, second)
	}
	w.o.Force = false
	close(answer)
	wg.Wait()
	w.want(t, 2, third)
}

// A cloud that does not answer does not delay a caller for which the known reply is
// enough.
func TestHurry(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	done := make(chan struct{})
	defer close(done)
	w.handle(func(http.ResponseWriter, *http.Request) { <-done })
	w.sleep(10 * time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	s, err := Current(ctx, w.Host, w.o)
	if err != nil || s.FaultKind != "unavailable" {
		t.Fatalf("%+v, %v", s, err)
	}
}

// A caller for which the known reply is not enough waits for a slow cloud, and also for
// another process's request.
func TestPatience(t *testing.T) {
	w := newWorld(t)
	w.want(t, 1, first, second)
	arrived, answer := w.hold(document(third))
	w.sleep(10 * time.Second)
	asked := make(chan struct{}, 1)
	short := func(known *store.CloudSource) bool {
		w.compare(t, known, first, second)
		asked <- struct{}{}
		return false
	}
	var wg sync.WaitGroup
	wait := func() {
		s, err := Enough(t.Context(), w.Host, w.o, short)
		if err != nil {
			t.Error(err)
			return
		}
		w.compare(t, s, third)
	}
	wg.Go(wait)
	<-asked
	<-arrived
	w.want(t, 2, first, second) // a caller with enough addresses continues
	wg.Go(wait)
	<-asked
	close(answer)
	wg.Wait()
	w.want(t, 2, third)
}

// A caller that stops waiting does not record a failure of the cloud.
func TestCancelled(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	w.handle(func(http.ResponseWriter, *http.Request) {
		cancel()
		<-done
	})
	if _, err := Current(ctx, w.Host, w.o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(done)
	w.answers(first)
	w.want(t, 2, first)
}

func TestSource(t *testing.T) {
	for want, o := range map[string]Options{
		"auto":                                 {},
		"azure http://168.63.129.16":           {Provider: "azure"},
		"aws http://127.0.0.1:8080":            {Provider: "aws", URL: "http://127.0.0.1:8080/", File: "/x"},
		"file /etc/kubernetes/interfaces.json": {Provider: "file", URL: "http://127.0.0.1"},
		"file /x":                              {Provider: "file", File: "/x"},
	} {
		if have := o.Source(); have != want {
			t.Errorf("%q, want %q", have, want)
		}
		if back, ok := OptionsOf(want); !ok || back.Source() != want {
			t.Errorf("%q: %+v, %t", want, back, ok)
		}
	}
}
