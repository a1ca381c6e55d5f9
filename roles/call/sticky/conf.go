// Package sticky has what IPAM roles share for addresses that stay with a pod over a
// restart: the "sticky" object of a configuration, the identity that an address is
// kept for, and the addresses that a pod requests by an annotation. It does no I/O;
// the state is in store.
package sticky

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Conf is the object "ipam.sticky". Without it a released address is not kept.
type Conf struct {
	// Key says what addresses are kept for: "pod", the pod's namespace and name,
	// which Kubernetes' runtimes pass; "container-name", the name that podman and
	// nerdctl pass; "mac", the requested hardware address; or "none", so that
	// addresses only cool down. If the runtime does not pass the value, the container
	// ID takes its place. Default "pod".
	Key string `json:"key,omitempty"`
	// TTL is how long addresses are kept after DEL: "5m", a number of seconds, or
	// "never" for addresses that never expire. Default "5m".
	TTL Span `json:"ttl,omitzero"`
	// Cooldown is how long after DEL no other identity gets the addresses. Default
	// "30s".
	Cooldown Span `json:"cooldown,omitzero"`
	// Mode is "prefer" or "strict". With "prefer", a pool that has no other address
	// gives away kept and cooling ones, and a pod whose old sandbox still lives gets
	// another address. With "strict", both are errors. Default "prefer".
	Mode string `json:"mode,omitempty"`
}

// Span is a duration in a configuration: a text such as "5m", "never", or a number of
// seconds. The zero Span is not set.
type Span struct {
	text string
	set  bool
}

// UnmarshalJSON accepts any text or number. Parse checks the value.
func (s *Span) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	switch {
	case string(raw) == "null":
		return nil
	case len(raw) > 0 && raw[0] == '"':
		s.set = true
		return json.Unmarshal(raw, &s.text)
	}
	var n json.Number
	if err := json.Unmarshal(raw, &n); err != nil {
		return errors.New(`want a text such as "5m", or a number of seconds`)
	}
	s.text, s.set = n.String(), true
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(s.text) }

// never is the Span without an end.
const never = "never"

// Or returns the Span in whole seconds, or a default when it is not set. A Span
// without an end is an error.
func (s Span) Or(byDefault time.Duration) (time.Duration, error) {
	if !s.set {
		return byDefault, nil
	}
	n, err := s.seconds()
	if err == nil && n < 0 {
		err = fmt.Errorf("%q, which is without an end, is not possible", s.text)
	}
	return time.Duration(n) * time.Second, err
}

// seconds parses a Span. Fractions are rounded up.
func (s Span) seconds() (int64, error) {
	if s.text == never || s.text == strconv.Itoa(store.KeepForever) {
		return store.KeepForever, nil
	}
	f, err := strconv.ParseFloat(s.text, 64)
	if err != nil {
		d, derr := time.ParseDuration(s.text)
		if derr != nil {
			return 0, fmt.Errorf(`%q is not a duration: want one such as "5m", a number of seconds, or %q`, s.text, never)
		}
		f = d.Seconds()
	}
	if math.IsNaN(f) || f < 0 || f > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not from 0 to %d seconds", s.text, math.MaxInt32)
	}
	return int64(math.Ceil(f)), nil
}

// Values of Conf.Key.
const (
	keyPod           = "pod"
	keyContainerName = "container-name"
	keyMAC           = "mac"
	keyNone          = "none"
)

// Modes, of Conf and of requests.
const (
	prefer = "prefer"
	strict = "strict"
)

// Rules is a parsed Conf.
type Rules struct {
	key string
	// TTL and Cooldown are in seconds. TTL may be store.KeepForever.
	TTL, Cooldown int64
	// Strict: kept addresses are never given away, and an identity never gets a
	// second address while its first is in use.
	Strict bool
}

// Defaults of Conf, in seconds.
const (
	defaultTTL      = 5 * 60
	defaultCooldown = 30
)

// Parse parses a Conf and adds its faults to f; nil without a Conf.
func Parse(f *roles.Faults, path string, c *Conf) *Rules {
	if c == nil {
		return nil
	}
	r := &Rules{key: c.Key, TTL: defaultTTL, Cooldown: defaultCooldown}
	switch c.Key {
	case "":
		r.key = keyPod
	case keyPod, keyContainerName, keyMAC, keyNone:
	default:
		f.Addf(path+".key", "%q is not one of %q, %q, %q, %q", c.Key, keyPod, keyContainerName, keyMAC, keyNone)
	}
	var err error
	if c.TTL.set {
		r.TTL, err = c.TTL.seconds()
		f.Check(path+".ttl", err)
	}
	if c.Cooldown.set {
		r.Cooldown, err = c.Cooldown.seconds()
		if err == nil && r.Cooldown < 0 {
			err = fmt.Errorf("%q is not possible: an address that never cools down is lost", never)
		}
		f.Check(path+".cooldown", err)
	}
	if r.key == keyNone {
		if c.TTL.set && r.TTL != 0 {
			f.Addf(path+".ttl", "has no effect with key %q: remove it", keyNone)
		}
		r.TTL = 0
	}
	r.Strict = ParseMode(f, path+".mode", c.Mode, prefer)
	return r
}

// ParseMode parses "strict" (true) or "prefer". An empty mode is the default.
func ParseMode(f *roles.Faults, path, mode, byDefault string) bool {
	if mode == "" {
		mode = byDefault
	}
	if mode != strict && mode != prefer {
		f.Addf(path, "%q is neither %q nor %q", mode, prefer, strict)
	}
	return mode == strict
}

// ParseTime parses the end of a reservation: "never", a time of RFC 3339, or a
// duration from now such as "48h". The zero time is never.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UTC(), nil
	}
	n, err := Span{text: strings.TrimSpace(text)}.seconds()
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf(`%q is not a time: want one such as "2027-01-31T12:00:00Z", "48h" or %q`, text, never)
	case n < 0:
		return time.Time{}, nil
	}
	return now.Add(time.Duration(n) * time.Second).UTC(), nil
}
