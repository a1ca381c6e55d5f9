// Package bandwidth is the CNI role "bandwidth": limits for what a container
// sends and receives, with the keys of the reference plugin.
package bandwidth

import (
	"encoding/json"
	"math"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the bandwidth role. A rate and its burst
// go together; without them there is no limit.
type Conf struct {
	roles.NetConf
	// IngressRate limits what the container receives, in bits per second. With
	// any of these four keys here, runtimeConfig.bandwidth is ignored.
	IngressRate *uint64 `json:"ingressRate,omitempty"`
	// IngressBurst is how many bits the container may receive at once, after a
	// pause. Packets longer than that never arrive.
	IngressBurst *uint64 `json:"ingressBurst,omitempty"`
	// EgressRate limits what the container sends, in bits per second.
	EgressRate *uint64 `json:"egressRate,omitempty"`
	// EgressBurst is how many bits the container may send at once, after a pause.
	EgressBurst *uint64 `json:"egressBurst,omitempty"`
	// Latency is how long a packet may wait for the rate once the burst is used
	// up: milliseconds, or a text with a unit ("2.5ms"). The queue of a direction
	// holds what the rate lets through in this time, and the burst. A shorter one
	// keeps delays short, a longer one drops less. Default 25.
	Latency json.RawMessage `json:"latency,omitempty"`
	// QueueLength is how many bytes the queue of a direction holds, whatever its
	// rate and burst. It stands in the place of latency.
	QueueLength uint32 `json:"queueLength,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// Bandwidth has the limits that the runtime asks for.
		Bandwidth Limits `json:"bandwidth,omitzero"`
	} `json:"runtimeConfig,omitzero"`
}

// Limits are rates and bursts, in bits per second and bits.
type Limits struct {
	// IngressRate limits what the container receives.
	IngressRate *uint64 `json:"ingressRate,omitempty"`
	// IngressBurst is how much it may receive at once.
	IngressBurst *uint64 `json:"ingressBurst,omitempty"`
	// EgressRate limits what the container sends.
	EgressRate *uint64 `json:"egressRate,omitempty"`
	// EgressBurst is how much it may send at once.
	EgressBurst *uint64 `json:"egressBurst,omitempty"`
}

const (
	defaultLatency = 25 * time.Millisecond
	// maxLatency is above any use, and times any rate it is a number.
	maxLatency = time.Hour
	// leastBits is a byte: the kernel counts those.
	leastBits = 8
	// maxBurst is below 4 GiB, which the kernel counts to.
	maxBurst = math.MaxUint32*leastBits - 1
)

// limits are those that count, with the path to their keys: the configuration's
// if it has any, even those that are 0, else the runtime's.
func (c *Conf) limits() (l Limits, path string) {
	l = Limits{c.IngressRate, c.IngressBurst, c.EgressRate, c.EgressBurst}
	if l == (Limits{}) {
		return c.RuntimeConfig.Bandwidth, "runtimeConfig.bandwidth."
	}
	return l, ""
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	l, path := c.limits()
	validate(&f, path+"ingress", value(l.IngressRate), value(l.IngressBurst))
	validate(&f, path+"egress", value(l.EgressRate), value(l.EgressBurst))
	if _, ok := c.latency(); !ok {
		f.Addf("latency", "%s is no time to wait: use milliseconds, or a text like \"2.5ms\", from 0 to one hour", c.Latency)
	} else if c.hasLatency() && c.QueueLength != 0 {
		f.Addf("queueLength", "cannot be combined with latency: each says how long the queue is, choose one")
	}
	return f.Err()
}

// validate judges one direction.
func validate(f *roles.Faults, path string, rate, burst uint64) {
	switch {
	case rate == 0 && burst == 0:
		return
	case rate == 0:
		f.Addf(path+"Rate", "is missing: a rate and its burst go together")
	case rate < leastBits:
		f.Addf(path+"Rate", "%d bits per second are less than a byte: use %d or more", rate, leastBits)
	}
	switch {
	case burst == 0:
		f.Addf(path+"Burst", "is missing: a rate and its burst go together")
	case burst < leastBits:
		f.Addf(path+"Burst", "%d bits are less than a byte: use %d or more", burst, leastBits)
	case burst > maxBurst:
		f.Addf(path+"Burst", "%d bits are more than the 4 GiB that the kernel counts to: use %d or less", burst, uint64(maxBurst))
	}
}

func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

func (c *Conf) hasLatency() bool { return len(c.Latency) > 0 && string(c.Latency) != "null" }

// latency is the time that packets may wait.
func (c *Conf) latency() (d time.Duration, ok bool) {
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

// bucket is one direction's limit, nil for none.
func (c *Conf) bucket(rate, burst *uint64) *netops.TBF {
	if value(rate) == 0 || value(burst) == 0 {
		return nil
	}
	t := &netops.TBF{Rate: *rate / leastBits, Burst: uint32(*burst / leastBits), Limit: c.QueueLength}
	if t.Limit == 0 {
		latency, _ := c.latency()
		waiting := float64(t.Rate) * latency.Seconds()
		t.Limit = uint32(min(waiting+float64(t.Burst), math.MaxUint32))
	}
	return t
}
