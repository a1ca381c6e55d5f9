// Package sticky is what IPAM roles have in common about addresses that stay
// with a pod over a restart: the "sticky" object of a configuration, whom an
// address is kept for, and which addresses a pod asks for by an annotation. It
// does no I/O; the state is in store.
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

// Conf is the object "ipam.sticky". Without it addresses do not stick: a
// released one is anybody's.
type Conf struct {
	// Key says for whom addresses are kept: "pod", the pod's namespace and name
	// as Kubernetes' runtimes tell them; "container-name", the name that podman
	// and nerdctl tell; "mac", the hardware address that was asked for; or
	// "none", for nobody, so that only the cool-down holds. What is told of
	// neither is kept for the container ID. Default "pod".
	Key string `json:"key,omitempty"`
	// TTL is how long addresses are kept after DEL: "5m", a number of seconds,
	// or "never", which means that they are kept for ever. Default "5m".
	TTL Span `json:"ttl,omitzero"`
	// Cooldown is how long after DEL nobody else gets the addresses. Default "30s".
	Cooldown Span `json:"cooldown,omitzero"`
	// Mode is "prefer": a pool that has nothing else gives away what is kept or
	// cools down, and a pod whose old sandbox lives gets another address; or
	// "strict": both are errors. Default "prefer".
	Mode string `json:"mode,omitempty"`
}

// Span is a time in a configuration: a text such as "5m", "never", or a number
// of seconds. The zero Span is none.
type Span struct {
	text string
	set  bool
}

// UnmarshalJSON takes texts and numbers; what they say is judged by Parse.
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

// MarshalJSON is UnmarshalJSON's inverse.
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(s.text) }

// never is the Span of no end.
const never = "never"

// Or is how long the Span is, or a default when none is given; whole seconds. A
// Span without an end is an error.
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

// seconds reads a Span; fractions are rounded up.
func (s Span) seconds() (int64, error) {
	if s.text == never || s.text == strconv.Itoa(store.KeepForever) {
		return store.KeepForever, nil
	}
	f, err := strconv.ParseFloat(s.text, 64)
	if err != nil {
		d, derr := time.ParseDuration(s.text)
		if derr != nil {
			return 0, fmt.Errorf(`%q is no time: want one such as "5m", a number of seconds, or %q`, s.text, never)
		}
		f = d.Seconds()
	}
	if math.IsNaN(f) || f < 0 || f > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not from 0 to %d seconds", s.text, math.MaxInt32)
	}
	return int64(math.Ceil(f)), nil
}

// What addresses are kept for.
const (
	keyPod           = "pod"
	keyContainerName = "container-name"
	keyMAC           = "mac"
	keyNone          = "none"
)

// Modes, of Conf and of explicit requests.
const (
	prefer = "prefer"
	strict = "strict"
)

// Rules are a Conf, parsed.
type Rules struct {
	key string
	// TTL and Cooldown are in seconds, TTL may be store.KeepForever.
	TTL, Cooldown int64
	// Strict: what is kept is never given away, and an identity has one address.
	Strict bool
}

// Defaults of Conf, in seconds.
const (
	defaultTTL      = 5 * 60
	defaultCooldown = 30
)

// Parse reads a Conf and notes its faults; nil without a Conf.
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
		f.Addf(path+".key", "%q is none of %q, %q, %q, %q", c.Key, keyPod, keyContainerName, keyMAC, keyNone)
	}
	var err error
	if c.TTL.set {
		if r.TTL, err = c.TTL.seconds(); err != nil {
			f.Addf(path+".ttl", "%v", err)
		}
	}
	if c.Cooldown.set {
		if r.Cooldown, err = c.Cooldown.seconds(); err == nil && r.Cooldown < 0 {
			err = fmt.Errorf("%q is not possible: an address that never cools down is lost", never)
		}
		if err != nil {
			f.Addf(path+".cooldown", "%v", err)
		}
	}
	if r.key == keyNone {
		if c.TTL.set && r.TTL != 0 {
			f.Addf(path+".ttl", "has nobody to be kept for with key %q: remove it", keyNone)
		}
		r.TTL = 0
	}
	r.Strict = ParseMode(f, path+".mode", c.Mode, prefer)
	return r
}

// ParseMode reads "strict" (true) or "prefer"; an empty one is the default.
func ParseMode(f *roles.Faults, path, mode, byDefault string) bool {
	if mode == "" {
		mode = byDefault
	}
	if mode != strict && mode != prefer {
		f.Addf(path, "%q is neither %q nor %q", mode, prefer, strict)
	}
	return mode == strict
}

// ParseTime reads until when something is to be kept: "never", a time of
// RFC 3339, or a span from now on such as "48h". The zero time is never.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UTC(), nil
	}
	n, err := Span{text: strings.TrimSpace(text)}.seconds()
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf(`%q is no time: want one such as "2027-01-31T12:00:00Z", "48h" or %q`, text, never)
	case n < 0:
		return time.Time{}, nil
	}
	return now.Add(time.Duration(n) * time.Second).UTC(), nil
}
