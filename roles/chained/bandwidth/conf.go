// Package bandwidth is the CNI role "bandwidth": it limits the traffic that a
// container sends and receives. It has the keys of the reference plugin.
package bandwidth

import (
	"encoding/json"
	"math"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the bandwidth role. A direction needs
// both a rate and a burst; without them it has no limit.
type Conf struct {
	roles.NetConf
	// IngressRate limits what the container receives, in bits per second. If
	// one of these four keys is set, runtimeConfig.bandwidth is ignored.
	IngressRate *uint64 `json:"ingressRate,omitempty"`
	// IngressBurst is how many bits the container may receive at once after a
	// pause. Longer packets are always dropped.
	IngressBurst *uint64 `json:"ingressBurst,omitempty"`
	// EgressRate limits what the container sends, in bits per second.
	EgressRate *uint64 `json:"egressRate,omitempty"`
	// EgressBurst is how many bits the container may send at once after a
	// pause. Longer packets are always dropped.
	EgressBurst *uint64 `json:"egressBurst,omitempty"`
	// Latency is how long a packet may be queued when the burst is used up: a
	// number of milliseconds, or a string with a unit ("2.5ms"). The queue of a
	// direction holds the bytes that the rate allows in this time, plus the
	// burst. A shorter latency keeps delays short; a longer one drops fewer
	// packets. Default 25.
	Latency json.RawMessage `json:"latency,omitempty"`
	// QueueLength is the size of a direction's queue in bytes, independent of
	// its rate and burst. It replaces latency.
	QueueLength uint32 `json:"queueLength,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// Bandwidth is the limits that the runtime requests. A burst of 2147483647 bits or more, which
		// Kubernetes' runtimes pass for every rate, means 100 ms of the rate, and at least 256 KiB.
		Bandwidth Limits `json:"bandwidth,omitzero"`
	} `json:"runtimeConfig,omitzero"`
}

// Limits are rates in bits per second and bursts in bits.
type Limits struct {
	// IngressRate limits what the container receives.
	IngressRate *uint64 `json:"ingressRate,omitempty"`
	// IngressBurst is how many bits the container may receive at once.
	IngressBurst *uint64 `json:"ingressBurst,omitempty"`
	// EgressRate limits what the container sends.
	EgressRate *uint64 `json:"egressRate,omitempty"`
	// EgressBurst is how many bits the container may send at once.
	EgressBurst *uint64 `json:"egressBurst,omitempty"`
}

const (
	defaultLatency = 25 * time.Millisecond
	// maxLatency is far above a useful latency, and its product with any rate
	// is a finite number.
	maxLatency = time.Hour
	// minBits is one byte, because the kernel counts bytes.
	minBits = 8
	// noBurst is the least burst, in bits, that means no burst in particular. Kubernetes has no annotation
	// for a burst, so its runtimes pass the largest number of 31 bits (CRI-O) or 32 bits (containerd) for
	// every rate, and 256 or 512 MiB would pass without a limit.
	noBurst = math.MaxInt32
	// burstTime and leastBurst, in bits, are the burst of such a limit. A packet before segmentation has
	// up to 64 KiB.
	burstTime  = 100 * time.Millisecond
	leastBurst = 256 << 10 * minBits
	// maxBurst is just below 4 GiB: the kernel stores the burst in 32 bits.
	maxBurst = math.MaxUint32*minBits - 1
)

// limits are the limits that apply, and the path of their keys: the
// configuration's if one of its keys is set, even to 0, else the runtime's.
func (c *Conf) limits() (l Limits, path string) {
	l = Limits{c.IngressRate, c.IngressBurst, c.EgressRate, c.EgressBurst}
	if l == (Limits{}) {
		l = c.RuntimeConfig.Bandwidth
		l.IngressBurst, l.EgressBurst = requestedBurst(l.IngressRate, l.IngressBurst), requestedBurst(l.EgressRate, l.EgressBurst)
		return l, "runtimeConfig.bandwidth."
	}
	return l, ""
}

// requestedBurst replaces the burst of a runtime that requests none in particular.
func requestedBurst(rate, burst *uint64) *uint64 {
	if valueOrZero(burst) < noBurst {
		return burst
	}
	bits := max(valueOrZero(rate)/uint64(time.Second/burstTime), leastBurst)
	bits = min(bits, *burst)
	return &bits
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	l, path := c.limits()
	validate(&f, path+"ingress", valueOrZero(l.IngressRate), valueOrZero(l.IngressBurst))
	validate(&f, path+"egress", valueOrZero(l.EgressRate), valueOrZero(l.EgressBurst))
	if _, ok := c.parseLatency(); !ok {
		f.Addf("latency", "%s is not a duration: use milliseconds, or a string like \"2.5ms\", from 0 to one hour", c.Latency)
	} else if c.hasLatency() && c.QueueLength != 0 {
		f.Addf("queueLength", "cannot be combined with latency: both set the length of the queue; choose one")
	}
	return f.Err()
}

// validate reports the errors of one direction.
func validate(f *roles.Faults, path string, rate, burst uint64) {
	switch {
	case rate == 0 && burst == 0:
		return
	case rate == 0:
		f.Addf(path+"Rate", "is missing: set both a rate and its burst")
	case rate < minBits:
		f.Addf(path+"Rate", "%d bits per second are less than a byte: use %d or more", rate, minBits)
	}
	switch {
	case burst == 0:
		f.Addf(path+"Burst", "is missing: set both a rate and its burst")
	case burst < minBits:
		f.Addf(path+"Burst", "%d bits are less than a byte: use %d or more", burst, minBits)
	case burst > maxBurst:
		f.Addf(path+"Burst", "%d bits exceed the kernel's limit of 4 GiB: use %d or less", burst, uint64(maxBurst))
	}
}

func valueOrZero(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

func (c *Conf) hasLatency() bool { return len(c.Latency) > 0 && string(c.Latency) != "null" }

// parseLatency returns the time for which packets may be queued. ok is false if the key is invalid.
func (c *Conf) parseLatency() (d time.Duration, ok bool) {
	if !c.hasLatency() {
		return defaultLatency, true
	}
	var text string
	var ms float64
	if err := coldjson.Unmarshal(c.Latency, &text); err == nil {
		d, err = time.ParseDuration(text)
		return d, err == nil && d >= 0 && d <= maxLatency
	}
	if err := coldjson.Unmarshal(c.Latency, &ms); err != nil || !(ms >= 0 && ms <= float64(maxLatency/time.Millisecond)) {
		return 0, false
	}
	return time.Duration(ms * float64(time.Millisecond)), true
}

// tbf is the kernel's token bucket filter for one direction, or nil without a
// limit.
func (c *Conf) tbf(rate, burst *uint64) *netops.TBF {
	if valueOrZero(rate) == 0 || valueOrZero(burst) == 0 {
		return nil
	}
	t := &netops.TBF{Rate: *rate / minBits, Burst: uint32(*burst / minBits), Limit: c.QueueLength}
	if t.Limit == 0 {
		latency, _ := c.parseLatency()
		queued := float64(t.Rate) * latency.Seconds()
		t.Limit = uint32(min(queued+float64(t.Burst), math.MaxUint32))
	}
	return t
}
