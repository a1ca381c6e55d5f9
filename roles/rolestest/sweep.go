package rolestest

import (
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

const (
	// maxSteps ends a sweep that never gets through: more writes than any role makes.
	maxSteps = 200
	// strideEnv has all sweeps probe every so many-th write: 1 in a soak, more where
	// calls are slow and another machine probes them all.
	strideEnv = "CNIBOX_SWEEP"
	// laterStride is how far apart the writes are that are probed of a role's second
	// and later configurations.
	laterStride = 3
)

// faultSweep makes the n-th write of ADD fail, for every n, and then of DEL:
// afterwards kernel and store equal the start.
func (s Suite) faultSweep(t *testing.T, c Conf) {
	b := s.bench(t, c)
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

// killSweep kills the process before and after the n-th write: DEL, and on the
// other turn GC, brings the start back.
func (s Suite) killSweep(t *testing.T, c Conf) {
	b := s.bench(t, c)
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

// againSweep kills ADD before and after its n-th write: the next ADD of the same
// attachment succeeds, unless the killed call had completed it. The ADD of a role
// that makes no interface itself fails instead, because it cannot distinguish a
// killed call from a running call of another program.
func (s Suite) againSweep(t *testing.T, c Conf) {
	if r, ok := s.Table.Lookup(s.Type); !ok || r.Kind != roles.Interface {
		return
	}
	b := s.bench(t, c)
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

// clean takes turns: DEL; a repeated ADD, which clears what the dead call left
// or finds the attachment complete, and DEL; GC that lists another container,
// so that the shared objects stay.
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

// through tells that the call made all its writes before the probed one came.
func (a Answer) through() bool { return strings.Contains(a.Stderr, unreached) }

// writes counts the writes to probe: 1, 2, 3, …, or with a stride fewer of them,
// of which the next sweep, and the next configuration's, has others.
func (b *bench) writes() iter.Seq[int] {
	b.t.Helper()
	stride := 1
	if b.conf.turn > 0 {
		stride = laterStride
	}
	if v := os.Getenv(strideEnv); v != "" {
		var err error
		if stride, err = strconv.Atoi(v); err != nil || stride < 1 {
			b.t.Fatalf("%s=%q: want a number from 1 on", strideEnv, v)
		}
	}
	first := 1 + (b.conf.turn+b.sweeps)%stride
	b.sweeps++
	return func(yield func(int) bool) {
		for n := first; n <= maxSteps && yield(n); n += stride {
		}
	}
}

// sweepAdd runs ADD with the n-th write probed until it gets through.
func (b *bench) sweepAdd(t *testing.T, kind string, after func(n int)) {
	t.Helper()
	for n := range b.writes() {
		call := b.call("ADD")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		a := b.Run(call)
		if a.Code == 0 { // through, or the write is one that ADD can do without
			b.OK(b.call("DEL"))
		}
		if a.through() {
			return
		}
		after(n)
	}
	t.Fatalf("%s: ADD did not get through after %d writes", kind, maxSteps)
}

// sweepDel does the same for DEL of a whole attachment.
func (b *bench) sweepDel(t *testing.T, kind string, after func(n int)) {
	t.Helper()
	for n := range b.writes() {
		b.OK(b.call("ADD"))
		call := b.call("DEL")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		if b.Run(call).through() {
			return
		}
		after(n)
	}
	t.Fatalf("%s: DEL did not get through after %d writes", kind, maxSteps)
}

// coldSweep probes the ADD that makes the shared objects too; GC with an empty
// list brings the untouched host back.
func (b *bench) coldSweep(t *testing.T, kind, pristine string) {
	t.Helper()
	b.warmed = false
	for n := range b.writes() {
		call := b.call("ADD")
		call.Probe = fmt.Sprintf("%s:%d", kind, n)
		a := b.Run(call)
		b.OK(b.call("DEL"))
		b.OK(b.gcCall(nil))
		b.ns.Reset(t)
		b.same(pristine, fmt.Sprintf("after a first ADD with %s:%d, DEL and GC", kind, n))
		if a.through() {
			return
		}
	}
	t.Fatalf("%s: first ADD did not get through after %d writes", kind, maxSteps)
}
