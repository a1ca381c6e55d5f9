package metrics_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/internal/metrics"
)

func TestText(t *testing.T) {
	w := &metrics.Writer{}
	w.Gauge("up", "Is it up.").Add(1)
	f := w.Counter("calls_total", "Calls.", "network", "verb")
	f.Add(3, "a\"b\\c\nd\xff", "ADD")
	f.Add(1e18, "", "DEL")
	var h metrics.Histogram
	for _, d := range []time.Duration{0, 2 * time.Millisecond, 2*time.Millisecond + 1, time.Hour} {
		h.Observe(d)
	}
	w.Histogram("took_seconds", "Times.", "verb").AddHistogram(&h, "ADD")
	want := `# HELP up Is it up.
# TYPE up gauge
up 1
# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{network="a\"b\\c\nd` + "\ufffd" + `",verb="ADD"} 3
calls_total{network="",verb="DEL"} 1e+18
# HELP took_seconds Times.
# TYPE took_seconds histogram
took_seconds_bucket{le="0.002",verb="ADD"} 2
took_seconds_bucket{le="0.005",verb="ADD"} 3
took_seconds_bucket{le="0.01",verb="ADD"} 3
took_seconds_bucket{le="0.025",verb="ADD"} 3
took_seconds_bucket{le="0.05",verb="ADD"} 3
took_seconds_bucket{le="0.1",verb="ADD"} 3
took_seconds_bucket{le="0.25",verb="ADD"} 3
took_seconds_bucket{le="1",verb="ADD"} 3
took_seconds_bucket{le="5",verb="ADD"} 3
took_seconds_bucket{le="30",verb="ADD"} 3
took_seconds_bucket{le="+Inf",verb="ADD"} 4
took_seconds_sum{verb="ADD"} 3600.004000001
took_seconds_count{verb="ADD"} 4
`
	if diff := cmp.Diff(want, string(w.Bytes())); diff != "" {
		t.Error(diff)
	}
	if n := len(w.Families()); n != 3 {
		t.Errorf("%d families, want 3", n)
	}
}
