// Package oneowner judges what calls did with addresses: whether an address was given to an owner while another one had it.
package oneowner

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// History has the calls that gave addresses and took them back, with their times.
type History struct {
	began time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// New returns an empty history.
func New() *History { return &History{began: time.Now()} }

// change is a call that gave an address to an owner, or one that took it back.
type change struct {
	addr netip.Addr
	by   string
	del  bool
}

// Now is the time for Given and Ended.
func (h *History) Now() int64 { return int64(time.Since(h.began)) }

// Given is called with the result of a call that gave an address, and the time of the call.
func (h *History) Given(a netip.Addr, by string, call int64) { h.add(change{addr: a, by: by}, call) }

// Ended is called after a call that took an address back, with the time of the call.
func (h *History) Ended(a netip.Addr, by string, call int64) {
	h.add(change{addr: a, by: by, del: true}, call)
}

func (h *History) add(c change, call int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{Input: c, Call: call, Return: h.Now()})
}

// oneOwner is the promise: an address is given to an owner only if no other one has it.
var oneOwner = porcupine.Model{
	Init: func() any { return "" },
	Step: func(owner, input, _ any) (bool, any) {
		c := input.(change)
		if c.del {
			return owner == c.by, ""
		}
		return owner == "", c.by
	},
}

// Judge fails the test if no order of the calls, each at a moment while it ran, keeps the promise.
func (h *History) Judge(tb testing.TB) {
	tb.Helper()
	byAddr := map[netip.Addr][]porcupine.Operation{}
	for _, o := range h.ops {
		a := o.Input.(change).addr
		byAddr[a] = append(byAddr[a], o)
	}
	for a, ops := range byAddr {
		if result := porcupine.CheckOperationsTimeout(oneOwner, ops, time.Minute); result != porcupine.Ok {
			tb.Errorf("%s: %s:\n%v", a, result, ops)
		}
	}
	tb.Logf("the calls with %d addresses are linearizable: %t", len(byAddr), !tb.Failed())
}
