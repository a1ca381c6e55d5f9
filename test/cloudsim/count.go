package cloudsim

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Counts are the requests since the simulator started.
type Counts struct {
	Requests uint64 `json:"requests"`
	// Forwarded are requests that came through a proxy: they name a host, or the client.
	Forwarded uint64            `json:"forwarded"`
	Providers map[string]uint64 `json:"providers"`
	// Statuses counts the statuses of answers; "0" is no answer.
	Statuses map[string]uint64 `json:"statuses"`
	Paths    map[string]uint64 `json:"paths"`
}

// maxPaths bounds the paths that are counted separately; all further ones are "…".
const maxPaths = 1000

func newCounts() Counts {
	return Counts{Providers: map[string]uint64{}, Statuses: map[string]uint64{}, Paths: map[string]uint64{}}
}

func (c *Counts) clone() *Counts {
	out := *c
	out.Providers, out.Statuses, out.Paths = maps.Clone(c.Providers), maps.Clone(c.Statuses), maps.Clone(c.Paths)
	return &out
}

func (c *Counts) arrive(r *http.Request, p *provider) {
	c.Requests++
	if r.URL.IsAbs() || forwarded(r.Header, "X-Forwarded-For", "Forwarded", "Via") {
		c.Forwarded++
	}
	name := "none"
	if p != nil {
		name = p.name
	}
	c.Providers[name]++
	path := r.Method + " " + r.URL.Path
	if _, known := c.Paths[path]; !known && len(c.Paths) >= maxPaths {
		path = "…"
	}
	c.Paths[path]++
}

func (c *Counts) answered(status int) { c.Statuses[strconv.Itoa(status)]++ }

// throttle admits a number of requests in a period; 0 admits all.
type throttle struct {
	most       int
	period     time.Duration
	retryAfter string
	passed     []time.Time
}

// refuse counts a request, and returns the answer to one that exceeds the limit.
func (t *throttle) refuse(now time.Time) *reply {
	if t.most == 0 {
		return nil
	}
	t.passed = slices.DeleteFunc(t.passed, func(at time.Time) bool { return now.Sub(at) >= t.period })
	if len(t.passed) < t.most {
		t.passed = append(t.passed, now)
		return nil
	}
	r := page(http.StatusTooManyRequests)
	if t.retryAfter != "" {
		r = r.with("Retry-After", t.retryAfter)
	}
	return &r
}
