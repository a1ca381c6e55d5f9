package feed

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

const (
	// maxBackoff is the longest that a failing source is left alone by itself.
	maxBackoff = 2 * time.Minute
	// maxFault bounds a recorded reason.
	maxFault = 1000
)

// due tells whether the cloud ought to be asked before the record is used. A clock
// that went back counts as time that has passed: nothing is waited for that lies
// further ahead than anybody would have put it.
func (o Options) due(s *store.CloudSource, now time.Time) bool {
	switch {
	case now.Before(s.NotBefore) && !now.Add(maxBackoff).Before(s.NotBefore):
		return false
	case s.Asked.IsZero(), s.Asked.After(now), o.Force:
		return true
	case s.Answered.Before(s.Asked) && !usable(s.NICs):
		return true // somebody is asking, or died asking: his lock tells
	}
	return !now.Before(s.Asked.Add(o.interval()))
}

// settle records how a question ended, and tells whether the reply is another
// than the one before.
//
// A good reply without addresses purges nothing. When another one follows, an
// interval later at least, it counts: then the addresses are gone, and handing
// them out would make pods that nobody reaches. They come back with the next good reply.
func (o Options) settle(s *store.CloudSource, reply *metadata.Reply, err error, now time.Time) (changed bool) {
	s.Answered = now
	if err == nil {
		s.Failed, s.Fault, s.FaultKind, s.NotBefore, s.EmptySince = 0, "", "", time.Time{}, time.Time{}
		return take(s, reply, now)
	}
	s.Failed++
	s.Fault, s.FaultKind = clip(err.Error()), kindOf(err)
	s.NotBefore = now.Add(o.pause(s, err))
	if !errors.Is(err, metadata.ErrNoAddresses) || reply == nil {
		return false
	}
	if usable(s.NICs) {
		if s.EmptySince.IsZero() || s.EmptySince.After(now) {
			s.EmptySince = now
		}
		if now.Before(s.EmptySince.Add(o.interval())) {
			s.NotBefore = now
			return false
		}
	}
	return take(s, reply, now)
}

// take makes a reply the known one.
func take(s *store.CloudSource, reply *metadata.Reply, now time.Time) (changed bool) {
	changed = s.Fetched.IsZero() || !reflect.DeepEqual(s.NICs, reply.NICs)
	if changed {
		s.Revision++
	}
	s.NICs, s.Fetched, s.Provider, s.Dropped = reply.NICs, now, reply.Provider, reply.Dropped
	return changed
}

// pause is how long to leave a failing source alone: as long as it asks for, and,
// where something is known to go on with, longer each time; not all nodes at once.
func (o Options) pause(s *store.CloudSource, err error) time.Duration {
	d := o.interval()
	if usable(s.NICs) {
		for range min(s.Failed-1, 10) {
			d *= 2
		}
		d = min(d, maxBackoff)
		d = d/2 + rand.N(d/2+1)
	}
	return min(max(d, metadata.RetryAfter(err)), maxBackoff)
}

func clip(s string) string {
	if len(s) > maxFault {
		return s[:maxFault]
	}
	return s
}
