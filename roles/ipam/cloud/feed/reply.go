package feed

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

const (
	// maxBackoff is the longest pause after failures.
	maxBackoff = 2 * time.Minute
	// maxFault is the maximum length of a recorded reason.
	maxFault = 1000
)

// due reports whether a request to the cloud is necessary. If the clock was set back, it is: a
// recorded request in the future is ignored, and so is a waiting time longer than maxBackoff.
func (o Options) due(s *store.CloudSource, now time.Time) bool {
	switch {
	case now.Before(s.NotBefore) && !now.Add(maxBackoff).Before(s.NotBefore):
		return false
	case s.Asked.IsZero(), s.Asked.After(now), o.Force:
		return true
	case s.Answered.Before(s.Asked) && !usable(s.NICs):
		return true // another process queries the cloud or died while doing so; its lock decides
	}
	return !now.Before(s.Asked.Add(o.interval()))
}

// recordReply records the end of a request and reports whether the reply differs from the previous
// one.
//
// The first valid reply without addresses changes nothing. If a second one follows after at least
// one interval, the source has no addresses from then on, because pods with the old ones could not
// be reached. The next reply with addresses restores them.
func (o Options) recordReply(s *store.CloudSource, reply *metadata.Reply, err error, now time.Time) (changed bool) {
	s.Answered = now
	if err == nil {
		s.Failed, s.Fault, s.FaultKind, s.NotBefore, s.EmptySince = 0, "", "", time.Time{}, time.Time{}
		return setReply(s, reply, now)
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
	return setReply(s, reply, now)
}

// setReply stores a reply.
func setReply(s *store.CloudSource, reply *metadata.Reply, now time.Time) (changed bool) {
	changed = s.Fetched.IsZero() || !reflect.DeepEqual(s.NICs, reply.NICs)
	if changed {
		s.Revision++
	}
	s.NICs, s.Fetched, s.Provider, s.Dropped = reply.NICs, now, reply.Provider, reply.Dropped
	return changed
}

// pause returns the time until the next request to a failing source: the cloud's Retry-After, or a
// time that doubles with each failure if there is a recorded reply. It is random, so that the nodes
// do not send requests at the same time.
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
