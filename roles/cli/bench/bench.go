// Package bench measures the plugins of a network as a runtime calls them. Each side, a directory of
// plugins, has a worker: a process of this program in network and mount namespaces of its own, which
// end with it. So nothing of the node's network or state changes.
package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
)

// Limits of a measurement.
const (
	maxRounds   = 2000
	maxParallel = 256
)

// warmUp is the number of rounds that do not count: the first ADD makes bridges and tables.
const warmUp = 3

// storms is the number of storms of a side. The median counts.
const storms = 3

// Self runs this program again.
type Self interface {
	// Isolated runs a process to its end in new network and mount namespaces.
	Isolated(ctx context.Context, env, args []string, in io.Reader, out, log io.Writer) error
}

// Plan says what is measured.
type Plan struct {
	// List is the network, Verbs are the verbs of its version in the order of a round.
	List  json.RawMessage
	Verbs []roles.Verb
	// Sides are the directories of plugins of each side, as CNI_PATH has them.
	Sides []string
	// Masters are the interfaces that the plugins expect on the host.
	Masters          []string
	Rounds, Parallel int
	Env              []string
}

// Check reports an impossible plan.
func (p *Plan) Check() error {
	var errs []error
	for _, n := range []struct {
		flag      string
		value, up int
	}{{"rounds", p.Rounds, maxRounds}, {"parallel", p.Parallel, maxParallel}} {
		if n.value < 1 || n.value > n.up {
			errs = append(errs, roles.Usagef("--%s %d: give 1 to %d", n.flag, n.value, n.up))
		}
	}
	return errors.Join(errs...)
}

// Report is the result. Times are in milliseconds.
type Report struct {
	Network  string `json:"network"`
	Rounds   int    `json:"rounds"`
	Parallel int    `json:"parallel"`
	Sides    []Side `json:"sides"`
	// Ratios are how many times as long the second side took, from one round to the next.
	Ratios []Ratio `json:"ratios,omitempty"`
}

// Side are the plugins of one directory.
type Side struct {
	Plugins string     `json:"plugins"`
	Verbs   []Measured `json:"verbs"`
}

// Measured are the calls of one verb for the whole list.
type Measured struct {
	Verb roles.Verb `json:"verb"`
	P50  float64    `json:"p50"`
	P90  float64    `json:"p90"`
	P99  float64    `json:"p99"`
	Max  float64    `json:"max"`
	// PerSecond is the throughput of several calls at a time, 0 if it was not measured.
	PerSecond float64   `json:"perSecond,omitempty"`
	Samples   []float64 `json:"samples"`
}

// Ratio is the median of the ratios of all rounds, and their spread.
type Ratio struct {
	Verb roles.Verb `json:"verb"`
	P10  float64    `json:"p10"`
	P50  float64    `json:"p50"`
	P90  float64    `json:"p90"`
}

// percentile returns the smallest sample that at least p percent do not exceed (nearest rank).
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Clone(samples)
	sorting.Func(sorted, cmp.Compare)
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// client is a running worker.
type client struct {
	side string
	in   *json.Encoder
	out  *json.Decoder
	end  func() error
}

// start starts a worker. Its plugins' standard error goes to log.
func start(ctx context.Context, self Self, p *Plan, side string, log io.Writer) *client {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := self.Isolated(ctx, p.Env, []string{"bench", "--worker"}, inR, outW, log)
		outW.CloseWithError(cmp.Or(err, io.ErrUnexpectedEOF))
		inR.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		ended <- err
	}()
	return &client{side: side, in: json.NewEncoder(inW), out: json.NewDecoder(outR), end: func() error {
		return errors.Join(inW.Close(), <-ended)
	}}
}

// call sends a request and waits for the reply.
func (c *client) call(r request) (time.Duration, error) {
	err := c.in.Encode(r)
	var a reply
	if err == nil {
		err = c.out.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.side, err)
	}
	return a.Took, nil
}

// Run measures the sides. They take turns within each round, and the first changes from round to
// round. progress is called after each step.
func Run(ctx context.Context, self Self, p Plan, network string, progress func(done, all int)) (_ *Report, err error) {
	log := &tail{}
	var clients []*client
	defer func() {
		for _, c := range clients {
			if end := c.end(); err == nil {
				err = end
			}
		}
		if text := log.String(); err != nil && text != "" {
			err = fmt.Errorf("%w; %s", err, text)
		}
	}()
	report := &Report{Network: network, Rounds: p.Rounds, Parallel: p.Parallel}
	for _, side := range p.Sides {
		c := start(ctx, self, &p, side, log)
		clients = append(clients, c)
		if _, err := c.call(request{Setup: &setup{p.List, side, p.Masters, p.Rounds + warmUp, p.Env}}); err != nil {
			return nil, err
		}
		report.Sides = append(report.Sides, Side{Plugins: side, Verbs: make([]Measured, len(p.Verbs))})
	}
	done, all := 0, (p.Rounds+warmUp)*len(p.Verbs)*len(clients)+storms*len(clients)
	for round := range p.Rounds + warmUp {
		for v, verb := range p.Verbs {
			for turn := range clients {
				s := (round + turn) % len(clients)
				took, err := clients[s].call(request{Verb: verb, First: round, Count: 1, Parallel: 1})
				if err != nil {
					return nil, err
				}
				if round >= warmUp {
					m := &report.Sides[s].Verbs[v]
					m.Samples = append(m.Samples, milliseconds(took))
				}
				done++
				progress(done, all)
			}
		}
	}
	perSecond := map[roles.Verb][][]float64{roles.Add: make([][]float64, len(clients)), roles.Del: make([][]float64, len(clients))}
	for storm := range storms {
		for turn := range clients {
			s := (storm + turn) % len(clients)
			for _, verb := range []roles.Verb{roles.Add, roles.Del} {
				took, err := clients[s].call(request{Verb: verb, Count: p.Rounds, Parallel: p.Parallel})
				if err != nil {
					return nil, err
				}
				perSecond[verb][s] = append(perSecond[verb][s], float64(p.Rounds)/took.Seconds())
			}
			done++
			progress(done, all)
		}
	}
	report.sum(p.Verbs, perSecond)
	return report, nil
}

// sum computes the percentiles and ratios.
func (r *Report) sum(verbs []roles.Verb, perSecond map[roles.Verb][][]float64) {
	for s := range r.Sides {
		for v, verb := range verbs {
			m := &r.Sides[s].Verbs[v]
			m.Verb = verb
			m.P50, m.P90, m.P99, m.Max = percentile(m.Samples, 50), percentile(m.Samples, 90), percentile(m.Samples, 99), percentile(m.Samples, 100)
			if all := perSecond[verb]; all != nil {
				m.PerSecond = percentile(all[s], 50)
			}
		}
	}
	if len(r.Sides) != 2 {
		return
	}
	for v, verb := range verbs {
		var ratios []float64
		for i, first := range r.Sides[0].Verbs[v].Samples {
			ratios = append(ratios, r.Sides[1].Verbs[v].Samples[i]/max(first, 1e-6))
		}
		r.Ratios = append(r.Ratios, Ratio{verb, percentile(ratios, 10), percentile(ratios, 50), percentile(ratios, 90)})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Histogram counts the samples of all sides between bounds that grow by about a fifth of a power of ten.
func (r *Report) Histogram(verb int) (bounds []float64, counts [][]int) {
	least, most := math.Inf(1), 0.0
	for s := range r.Sides {
		all := r.Sides[s].Verbs[verb].Samples
		least, most = min(least, slices.Min(all)), max(most, slices.Max(all))
	}
	steps := []float64{1, 1.5, 2.5, 4, 6}
	for power := 0.001; power < 1e7; power *= 10 {
		for i, step := range steps {
			next := power * 10
			if i+1 < len(steps) {
				next = power * steps[i+1]
			}
			if next > least && power*step <= most {
				bounds = append(bounds, power*step)
			}
		}
	}
	for s := range r.Sides {
		n := make([]int, len(bounds))
		for _, sample := range r.Sides[s].Verbs[verb].Samples {
			i, _ := slices.BinarySearch(bounds, math.Nextafter(sample, math.Inf(1)))
			n[max(i-1, 0)]++
		}
		counts = append(counts, n)
	}
	return bounds, counts
}

// tail keeps the end of what plugins print on standard error.
type tail struct{ text []byte }

func (t *tail) Write(b []byte) (int, error) {
	const most = 2000
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(b), nil
}

func (t *tail) String() string { return strings.Join(strings.Fields(string(t.text)), " ") }
