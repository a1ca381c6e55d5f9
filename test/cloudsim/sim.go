// Package cloudsim simulates the metadata services of clouds: from one description of a node's interfaces it answers as Azure, AWS,
// Google and others do, with their headers and refusals, and with every fault that a client must survive. The program
// test/cmd/cloud-sim, the demo and tests use it; see docs/lab.md.
package cloudsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/store"
)

// Options configure a simulator.
type Options struct {
	// Providers are names; "all" alone selects every provider.
	Providers []string
	// NICs are the node's; nil is the node of the article about AKS.
	NICs []store.CloudNIC
	// Listen are addresses with ports; empty are those of the providers.
	Listen []string
	// Script has orders that run after a number of requests; see docs/lab.md.
	Script string
	// Log gets a line for each request; nil discards it.
	Log *slog.Logger
	// Now is the clock for tokens and throttling; nil is the real one.
	Now func() time.Time
}

// Sim is a running simulator.
type Sim struct {
	providers []*provider
	tokens    map[string]*tokens
	listen    *listeners
	log       *slog.Logger
	now       func() time.Time

	mu     sync.Mutex
	nics   []store.CloudNIC
	faults []*fault
	// healed is closed when faults end, changed when answers may differ.
	healed, changed chan struct{}
	script          []scriptLine
	throttle        throttle
	counts          Counts
}

// Start listens and serves until Close.
func Start(ctx context.Context, o Options) (*Sim, error) {
	all, err := choose(o.Providers)
	if err != nil {
		return nil, err
	}
	script, err := parseScript(o.Script)
	if err != nil {
		return nil, err
	}
	s := &Sim{
		providers: all, tokens: map[string]*tokens{}, log: o.Log, now: o.Now, nics: o.NICs, script: script,
		healed: make(chan struct{}), changed: make(chan struct{}), counts: newCounts(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.nics == nil {
		node := articleNode()
		s.nics, err = node.draw()
		if err != nil {
			return nil, err
		}
	}
	for _, p := range all {
		s.tokens[p.name] = newTokens(s.now)
	}
	addrs := slices.Clone(o.Listen)
	if len(addrs) == 0 {
		for _, p := range all {
			addrs = append(addrs, p.at[0])
		}
		slices.Sort(addrs)
		addrs = slices.Compact(addrs)
	}
	s.listen = &listeners{handler: s, log: s.log, addrs: addrs}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.listen.open(ctx); err != nil {
		return nil, err
	}
	if err := s.runScript(); err != nil {
		return nil, errors.Join(err, s.listen.close())
	}
	return s, nil
}

// Close stops listening and ends every connection.
func (s *Sim) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
	return s.listen.close()
}

// Addrs returns the addresses on which it listens, with their real ports.
func (s *Sim) Addrs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.listen.addrs)
}

// URL returns the base URL of the first address.
func (s *Sim) URL() string { return "http://" + s.Addrs()[0] }

// wake ends the delays of faults, and makes waiting requests check for a change.
func (s *Sim) wake() {
	close(s.healed)
	s.healed = make(chan struct{})
	s.change()
}

func (s *Sim) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// arrival is the state of the simulator when a request arrives.
type arrival struct {
	serial uint64
	faults []*fault
	healed <-chan struct{}
	// throttled is the answer if the request exceeds the limit.
	throttled *reply
}

// arrive counts a request, runs the script's lines for it, and finds the faults that apply to it.
func (s *Sim) arrive(r *http.Request, p *provider) arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.arrive(r, p)
	if err := s.runScript(); err != nil {
		s.log.Error("script", "error", err)
	}
	a := arrival{serial: s.counts.Requests, healed: s.healed, throttled: s.throttle.refuse(s.now())}
	for _, f := range s.faults {
		if !f.applies(r) {
			continue
		}
		met := *f
		met.serial = a.serial
		a.faults = append(a.faults, &met)
		if f.left > 0 {
			f.left--
		}
	}
	s.faults = slices.DeleteFunc(s.faults, func(f *fault) bool { return f.left == 0 })
	return a
}

// view returns the model with the changes of these faults, and a channel that is closed at the next change.
func (s *Sim) view(faults []*fault) (*view, <-chan struct{}) {
	s.mu.Lock()
	v, changed := &view{nics: clone(s.nics)}, s.changed
	s.mu.Unlock()
	for _, f := range faults {
		if f.kind.see != nil {
			f.kind.see(v)
		}
	}
	return v, changed
}

// ServeHTTP answers a request, with the active faults.
func (s *Sim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, path := pick(s.providers, r)
	a := s.arrive(r, p)
	status, err := s.answer(w, r, p, path, a)
	s.mu.Lock()
	s.counts.answered(status)
	s.mu.Unlock()
	s.log.Info("request", "number", a.serial, "from", r.RemoteAddr, "method", r.Method, "url", r.URL.String(), "status", status, "error", err)
	if err != nil {
		panic(http.ErrAbortHandler) // ends the connection without a log entry
	}
}

// answer answers a request and returns the status that was sent, 0 for none.
func (s *Sim) answer(w http.ResponseWriter, r *http.Request, p *provider, path string, a arrival) (int, error) {
	out := &sending{w: w, r: r, stop: a.healed}
	for _, f := range a.faults {
		if f.kind.early {
			out.delay = f.delay
			if err := f.kind.send(out); err != nil {
				return 0, err
			}
		}
	}
	rep := s.reply(r, p, path, a)
	for _, f := range a.faults {
		if f.kind.say != nil {
			f.kind.say(f, &rep)
		}
	}
	out.reply = &rep
	for _, f := range a.faults {
		if f.kind.send != nil && !f.kind.early {
			out.delay = f.delay
			return rep.status, f.kind.send(out)
		}
	}
	out.head(len(rep.body))
	_, err := w.Write(rep.body)
	if errors.Is(err, http.ErrBodyNotAllowed) || r.Method == http.MethodHead {
		err = nil
	}
	return rep.status, err
}

// reply returns the provider's answer, after the change that the request waits for.
func (s *Sim) reply(r *http.Request, p *provider, path string, a arrival) reply {
	switch {
	case p == nil:
		return page(http.StatusNotFound)
	case a.throttled != nil:
		return *a.throttled
	}
	after, limit, waits := waiting(r)
	var end <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		end = t.C
	}
	for {
		v, changed := s.view(a.faults)
		rep := p.serve(&query{Request: r, path: path, view: v, tokens: s.tokens[p.name]})
		tag := rep.header.Get("ETag")
		if after == "" {
			after = tag
		}
		if !waits || tag == "" || tag != after {
			return rep
		}
		select {
		case <-changed:
		case <-end:
			return rep
		case <-r.Context().Done():
			return rep
		}
	}
}

// listeners are the addresses, and the server on them unless it refuses connections.
type listeners struct {
	handler http.Handler
	log     *slog.Logger
	addrs   []string
	server  *http.Server
	serving sync.WaitGroup
}

// open listens on all addresses, or on none. A port of 0 becomes a real one.
func (l *listeners) open(ctx context.Context) error {
	if l.server != nil {
		return nil
	}
	server := &http.Server{Handler: l.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(l.log.Handler(), slog.LevelDebug)}
	var open []net.Listener
	for i, addr := range l.addrs {
		one, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			for _, other := range open {
				err = errors.Join(err, other.Close())
			}
			return explain(addr, err)
		}
		open, l.addrs[i] = append(open, one), one.Addr().String()
	}
	l.server = server
	for _, one := range open {
		l.serving.Go(func() {
			if err := server.Serve(one); !errors.Is(err, http.ErrServerClosed) {
				l.log.Error("stopped serving an address", "address", one.Addr().String(), "error", err)
			}
		})
	}
	return nil
}

// explain adds what to do about an address that is not this host's.
func explain(addr string, err error) error {
	host, _, _ := net.SplitHostPort(addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("listen on %s: %w: give it to an interface first, as by: ip address add %s dev lo; or use -listen", addr, syscall.EADDRNOTAVAIL, host)
	}
	return err
}

// close ends all connections.
func (l *listeners) close() error {
	if l.server == nil {
		return nil
	}
	err := l.server.Close()
	l.server = nil
	l.serving.Wait()
	return err
}

var _ io.Closer = (*Sim)(nil)
