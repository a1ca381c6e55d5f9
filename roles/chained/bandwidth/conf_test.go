package bandwidth

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate includes the reference's scenario "invalid".
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"ingressRate":8,"ingressBurst":8,"egressRate":18446744073709551615,"egressBurst":34359738359}`},
		{Name: "zeros", Conf: `{"ingressRate":0,"ingressBurst":0,"egressRate":0,"egressBurst":0}`},
		{Name: "null", Conf: `{"ingressRate":null,"latency":null,"runtimeConfig":{"bandwidth":null}}`},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
		{Name: "rate without burst", Conf: `{"ingressRate":8}`, Paths: []string{"ingressBurst"}},
		{Name: "burst without rate", Conf: `{"egressBurst":8}`, Paths: []string{"egressRate"}},
		{Name: "burst too large", Conf: `{"egressRate":8,"egressBurst":34359738360}`, Paths: []string{"egressBurst"}},
		{Name: "less than a byte", Conf: `{"ingressRate":7,"ingressBurst":1}`, Paths: []string{"ingressRate", "ingressBurst"}},
		{Name: "both directions at once", Conf: `{"ingressRate":8,"egressBurst":8,"latency":-1}`, Paths: []string{"ingressBurst", "egressRate", "latency"}},
		{Name: "in runtimeConfig", Conf: `{"runtimeConfig":{"bandwidth":{"ingressRate":8,"egressRate":1,"egressBurst":8}}}`, Paths: []string{"runtimeConfig.bandwidth.ingressBurst", "runtimeConfig.bandwidth.egressRate"}},
		{Name: "runtimeConfig that does not count", Conf: `{"ingressRate":0,"runtimeConfig":{"bandwidth":{"ingressRate":8}}}`},
		{Name: "latency", Conf: `{"latency":12.5}`},
		{Name: "latency text", Conf: `{"latency":"1h"}`},
		{Name: "latency without unit", Conf: `{"latency":"25"}`, Paths: []string{"latency"}},
		{Name: "latency too long", Conf: `{"latency":3600001}`, Paths: []string{"latency"}},
		{Name: "latency negative", Conf: `{"latency":"-1ms"}`, Paths: []string{"latency"}},
		{Name: "latency of another type", Conf: `{"latency":[25]}`, Paths: []string{"latency"}},
		{Name: "latency and queue", Conf: `{"latency":25,"queueLength":10000}`, Paths: []string{"queueLength"}},
		{Name: "queue too long", Conf: `{"queueLength":4294967296}`, Paths: []string{"queueLength"}},
		{Name: "wrong type", Conf: `{"ingressRate":"8"}`, Paths: []string{"ingressRate"}},
		{Name: "negative", Conf: `{"egressRate":-8}`, Paths: []string{"egressRate"}},
		{Name: "fraction", Conf: `{"runtimeConfig":{"bandwidth":{"egressBurst":1.5}}}`, Paths: []string{"runtimeConfig.bandwidth.egressBurst"}},
	})
}

// TestBucket computes queue sizes: for the reference's 25 ms, for a configured
// latency, and limited to the kernel's maximum.
func TestBucket(t *testing.T) {
	rate, burst := uint64(80_000_000), uint64(800_000)
	most, least := uint64(1<<64-1), uint64(8)
	for _, c := range []struct {
		conf        string
		rate, burst *uint64
		limit       uint32
	}{
		{`{}`, &rate, &burst, 350_000},
		{`{"latency":10}`, &rate, &burst, 200_000},
		{`{"latency":"0.5ms"}`, &rate, &burst, 105_000},
		{`{"latency":0}`, &rate, &burst, 100_000},
		{`{"queueLength":4096}`, &rate, &burst, 4096},
		{`{"latency":3600000}`, &most, &burst, 1<<32 - 1},
		{`{}`, &least, &least, 1},
	} {
		r, err := rolestest.Read[*role](Role(), []byte(c.conf))
		if err != nil {
			t.Fatal(err)
		}
		b := r.conf.tbf(c.rate, c.burst)
		if b.Limit != c.limit || b.Rate != *c.rate/8 || uint64(b.Burst) != *c.burst/8 {
			t.Errorf("%s: %+v, want a limit of %d", c.conf, b, c.limit)
		}
	}
}

// TestRequestedBurst: a runtime's largest numbers mean no burst in particular. The configuration's own
// numbers are used as they are.
func TestRequestedBurst(t *testing.T) {
	for _, c := range []struct {
		conf  string
		burst uint32
	}{
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":80000000,"ingressBurst":4294967295}}}`, 1_000_000},
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":80000000,"ingressBurst":2147483647}}}`, 1_000_000},
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":4294967295}}}`, 256 << 10},
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":100000000000,"ingressBurst":4294967295}}}`, 536870911},
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":80000000,"ingressBurst":2147483640}}}`, 268435455},
		{`{"ingressRate":80000000,"ingressBurst":4294967295}`, 536870911},
	} {
		r, err := rolestest.Read[*role](Role(), []byte(c.conf))
		if err != nil {
			t.Fatal(err)
		}
		l, _ := r.conf.limits()
		if b := r.conf.tbf(l.IngressRate, l.IngressBurst); b.Burst != c.burst {
			t.Errorf("%s: burst %d, want %d", c.conf, b.Burst, c.burst)
		}
	}
}

// FuzzLatency tests the decoder of latency, which accepts a number or a string.
func FuzzLatency(f *testing.F) {
	for _, s := range []string{`25`, `"25ms"`, `1e300`, `-0`, `"1e9h"`, `null`, `{}`, `"\u0000"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Conf{Latency: json.RawMessage(b)}
		d, ok := c.parseLatency()
		if ok && (d < 0 || d > time.Hour) {
			t.Errorf("%q is %s", b, d)
		}
		rate, burst := uint64(1<<64-1), uint64(maxBurst)
		if q := c.tbf(&rate, &burst); q.Limit == 0 {
			t.Errorf("%q gives %+v", b, q)
		}
	})
}
