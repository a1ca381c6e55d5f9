package rolestest

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/test/seed"
)

const (
	// maxSteps is the number of writes after which a sweep fails. No role makes so many
	// writes.
	maxSteps = 200
	// strideEnv makes all sweeps probe only every n-th write: 1 in a soak, more if calls
	// are slow and another test run probes every write. With more than 1, some parts of the
	// suite leave out a role's later configurations.
	strideEnv = "CNIBOX_SWEEP"
	// laterStride is the distance of the probed writes for a role's second and later
	// configurations.
	laterStride = 3
	// fewWrites is the number of writes that each sweep probes in a short run, firstWrites the number of the first
	// writes from which one is chosen.
	fewWrites   = 3
	firstWrites = 8
)

// faultSweep makes the n-th write of ADD fail, for every n, and then of DEL. Afterwards
// kernel and store equal the first state.
func (s Suite) faultSweep(t *testing.T, c Conf) {
	b := s.bench(t, c)
	b.choose(6)
	start := b.warm()
	for _, kind := range []string{"net:fail", "store:fail"} {
		b.sweepAdd(t, kind, func(n int) {
			b.same(start, fmt.Sprintf("after ADD with %s:%d", kind, n))
		})
		b.sweepDel(t, kind, func(n int) {
			b.OK(b.call("DEL"))
			b.same(start, fmt.Sprintf("after DEL with %s:%d and DEL", kind, n))
		})
	}
	b.OK(b.gcCall(nil))
	pristine := b.state()
	for _, kind := range []string{"net:fail", "store:fail"} {
		b.coldSweep(t, kind, pristine)
	}
}

// killSweep kills the process before and after the n-th write. Then DEL, or in every
// second run GC, restores the first state.
func (s Suite) killSweep(t *testing.T, c Conf) {
	b := s.bench(t, c)
	b.choose(9)
	start := b.warm()
	for _, kind := range []string{"net:kill-before", "net:kill-after", "store:kill"} {
		b.sweepAdd(t, kind, func(n int) {
			b.clean(n)
			b.same(start, fmt.Sprintf("after ADD with %s:%d and cleaning", kind, n))
		})
		b.sweepDel(t, kind, func(n int) {
			b.clean(n)
			b.same(start, fmt.Sprintf("after DEL with %s:%d and cleaning", kind, n))
		})
	}
	b.OK(b.gcCall(nil))
	pristine := b.state()
	for _, kind := range []string{"net:kill-before", "net:kill-after", "store:kill"} {
		b.coldSweep(t, kind, pristine)
	}
}

// againSweep kills ADD before and after its n-th write. The next ADD of the same
// attachment succeeds, unless the killed call had finished it. A role without an
// interface of its own returns an error, because it cannot distinguish a killed call from
// a living attachment of a third-party plugin.
func (s Suite) againSweep(t *testing.T, c Conf) {
	if r, ok := s.Table.Lookup(s.Type); !ok || r.Kind != roles.Interface {
		return
	}
	b := s.bench(t, c)
	b.choose(fewWrites)
	start := b.warm()
	for _, kind := range []string{"net:kill-before", "net:kill-after", "store:kill"} {
		b.sweepAdd(t, kind, func(n int) {
			if whole := b.isAttached(b.call("ADD")); !whole {
				b.OK(b.call("ADD"))
			}
			b.OK(b.call("DEL"))
			b.same(start, fmt.Sprintf("after ADD with %s:%d, ADD again and DEL", kind, n))
		})
	}
}

// clean alternates three kinds of cleaning: DEL; a second ADD, which removes the killed
// call's objects or finds the attachment complete, and then DEL; and a GC that lists
// another container, so that the shared objects stay.
func (b *bench) clean(n int) {
	b.t.Helper()
	switch n % 3 {
	case 0:
		b.OK(b.call("DEL"))
	case 1:
		b.Run(b.call("ADD"))
		b.OK(b.call("DEL"))
	case 2:
		b.OK(b.gcCall([]roles.AttachmentID{{ContainerID: "another", IfName: "eth0"}}))
		b.ns.Reset(b.t)
	}
}

// through reports whether the call made fewer writes than the probe needs.
func (a Answer) through() bool { return strings.Contains(a.Stderr, unreached) }

// choose chooses which parts of a sweep probe a write in a short run. A part is a kind of fault for ADD, DEL or the first ADD.
func (b *bench) choose(parts int) {
	b.t.Helper()
	if !b.conf.few {
		return
	}
	b.random = rand.New(rand.NewPCG(seed.Of(b.t), 0))
	b.chosen = b.random.Perm(parts)[:fewWrites]
}

// sweep calls probe with the writes to probe, until probe reports that the call made fewer writes. In a short run it probes one write, or
// none if the part of the sweep was not chosen.
func (b *bench) sweep(t *testing.T, kind string, probe func(n int) (through bool)) {
	t.Helper()
	if b.conf.few {
		part := b.sweeps
		b.sweeps++
		if !slices.Contains(b.chosen, part) {
			return
		}
		for n := 1 + b.random.IntN(firstWrites); probe(n) && n > 1; {
			n = 1 + b.random.IntN(n-1)
		}
		return
	}
	for n := range b.writes() {
		if probe(n) {
			return
		}
	}
	t.Fatalf("%s: the call did not succeed after %d writes", kind, maxSteps)
}

// writes iterates over the writes to probe: 1, 2, 3, …. With a stride it skips writes,
// different ones in each sweep and configuration.
func (b *bench) writes() iter.Seq[int] {
	b.t.Helper()
	stride := 1
	if b.conf.turn > 0 {
		stride = laterStride
	}
	if v := os.Getenv(strideEnv); v != "" {
		var err error
		if stride, err = strconv.Atoi(v); err != nil || stride < 1 {
			b.t.Fatalf("%s=%q: want a number of 1 or more", strideEnv, v)
		}
	}
	first := 1 + (b.conf.turn+b.sweeps)%stride
	b.sweeps++
	return func(yield func(int) bool) {
		for n := first; n <= maxSteps && yield(n); n += stride {
		}
	}
}

// sweepAdd runs ADD with the n-th write probed, until ADD makes fewer than n writes.
func (b *bench) sweepAdd(t *testing.T, kind string, after func(n int)) {
	t.Helper()
	b.sweep(t, kind, func(n int) bool {
		call := b.call("ADD")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		a := b.Run(call)
		if a.Code == 0 { // ADD made fewer writes, or does not need the probed one
			b.OK(b.call("DEL"))
		}
		if a.through() {
			return true
		}
		after(n)
		return false
	})
}

// sweepDel does the same for DEL of a whole attachment.
func (b *bench) sweepDel(t *testing.T, kind string, after func(n int)) {
	t.Helper()
	b.sweep(t, kind, func(n int) bool {
		b.OK(b.call("ADD"))
		call := b.call("DEL")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		if b.Run(call).through() {
			return true
		}
		after(n)
		return false
	})
}

// coldSweep probes the ADD that also makes the shared objects. GC with an empty list
// restores the unchanged host.
func (b *bench) coldSweep(t *testing.T, kind, pristine string) {
	t.Helper()
	b.warmed = false
	b.sweep(t, "first ADD with "+kind, func(n int) bool {
		call := b.call("ADD")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		a := b.Run(call)
		b.OK(b.call("DEL"))
		b.OK(b.gcCall(nil))
		b.ns.Reset(t)
		b.same(pristine, fmt.Sprintf("after a first ADD with %s:%d, DEL and GC", kind, n))
		return a.through()
	})
}
