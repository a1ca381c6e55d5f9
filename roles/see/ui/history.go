package ui

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/roles/see/topo"
)

// The rates of an hour: the counters are read once in a span, and the newest samples are kept.
const (
	defaultSpan = 15 * time.Second
	mostSamples = int(time.Hour / defaultSpan)
)

// Counted are the bytes of a link since it exists.
type Counted struct{ Received, Sent uint64 }

// history has the rates of links by name.
type history struct {
	span  time.Duration
	last  map[string]Counted
	rates map[string]*topo.Rates
}

// add adds a sample. A link that is gone is forgotten, and one whose counters went back is another one.
func (h *history) add(now map[string]Counted) {
	kept := map[string]*topo.Rates{}
	for name, c := range now {
		r := h.rates[name]
		was, known := h.last[name]
		if r == nil || !known || c.Received < was.Received || c.Sent < was.Sent {
			kept[name] = &topo.Rates{Span: h.span}
			continue
		}
		kept[name] = &topo.Rates{
			Span:     h.span,
			Received: appendRate(r.Received, float64(c.Received-was.Received)/h.span.Seconds()),
			Sent:     appendRate(r.Sent, float64(c.Sent-was.Sent)/h.span.Seconds()),
		}
	}
	h.last, h.rates = now, kept
}

// appendRate returns new values: a page may be drawing the former ones.
func appendRate(values []float64, v float64) []float64 {
	return append(append([]float64{}, values[max(0, len(values)-mostSamples+1):]...), v)
}

// sample follows the counters until ctx ends.
func (s *Server) sample(ctx context.Context) {
	tick := time.NewTicker(s.history.span)
	defer tick.Stop()
	for {
		if now, err := s.Count(ctx); err == nil { // a page that is open shows the fault
			s.mu.Lock()
			s.history.add(now)
			s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
