// Package rates keeps what the links of a host carried in the last hour.
package rates

import (
	"context"
	"sync"
	"time"

	"github.com/cnibox/cnibox/netops"
)

// Span is the time between two readings of the counters, and most the number of spans that are kept: an hour.
const (
	Span = 15 * time.Second
	most = int(time.Hour / Span)
)

// Counted are the bytes of a link since it exists.
type Counted struct{ Received, Sent uint64 }

// Rates are the bytes per second of a link in equal spans of time, the oldest first.
type Rates struct {
	Span     time.Duration `json:"spanNs"`
	Received []float32     `json:"received"`
	Sent     []float32     `json:"sent"`
}

// History has the rates of links by name. It may be used concurrently.
type History struct {
	span time.Duration

	mu   sync.Mutex
	last map[string]Counted
	// links is replaced as a whole, and nothing in it changes.
	links map[string]*Rates
}

// New returns an empty History. former are the rates of another one, or nil.
func New(span time.Duration, former map[string]*Rates) *History {
	return &History{span: span, links: former}
}

// Links returns the rates. The caller does not change them.
func (h *History) Links() map[string]*Rates {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.links
}

// Add adds a reading. A link that is gone is forgotten, and one whose counters went back is another one.
func (h *History) Add(now map[string]Counted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := map[string]*Rates{}
	for name, c := range now {
		was, counted := h.last[name]
		r := h.links[name]
		switch {
		case r == nil || counted && (c.Received < was.Received || c.Sent < was.Sent) || r.Span != h.span:
			kept[name] = &Rates{Span: h.span}
		case !counted: // the first reading after New
			kept[name] = r
		default:
			kept[name] = &Rates{Span: h.span, Received: h.append(r.Received, c.Received-was.Received), Sent: h.append(r.Sent, c.Sent-was.Sent)}
		}
	}
	h.last, h.links = now, kept
}

func (h *History) append(values []float32, bytes uint64) []float32 {
	return append(append([]float32{}, values[max(0, len(values)-most+1):]...), float32(float64(bytes)/h.span.Seconds()))
}

// Follow adds what count reads until ctx ends. A reading that fails is left out.
func (h *History) Follow(ctx context.Context, count func(context.Context) (map[string]Counted, error)) {
	tick := time.NewTicker(h.span)
	defer tick.Stop()
	for {
		if now, err := count(ctx); err == nil {
			h.Add(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Count returns a function that reads the counters of the host's links.
func Count(n *netops.Net) func(context.Context) (map[string]Counted, error) {
	return func(ctx context.Context) (map[string]Counted, error) {
		links, err := n.Links(ctx, nil)
		if err != nil {
			return nil, err
		}
		counters, err := n.Counters(ctx)
		if err != nil {
			return nil, err
		}
		all := map[string]Counted{}
		for _, l := range links {
			if c, known := counters[l.Index]; known {
				all[l.Name] = Counted{c.ReceivedBytes, c.SentBytes}
			}
		}
		return all, nil
	}
}
