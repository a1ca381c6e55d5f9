package nodeipam

import (
	"cmp"
	"context"
	"net/http"

	writer "github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// handler serves /metrics with kube-controller-manager's names, and /healthz.
func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", process.Metrics(d.writeMetrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := d.status()
		process.AnswerText(w, s.Error == "", cmp.Or(s.Error, "ok"))
	})
	return mux
}

// writeMetrics writes the metrics of each cluster network. A replica that does not lead has none.
func (d *daemon) writeMetrics(_ context.Context, w *writer.Writer) {
	s := d.status()
	w.Gauge("cnibox_nodeipam_leader", "1 if this process assigns pod networks.").Add(boolean(s.Leader))
	w.Gauge("cnibox_nodeipam_waiting_nodes", "Nodes without pod networks, as the leader knows.").Add(float64(s.Waiting))
	const prefix = "node_ipam_controller_"
	labels := []string{"clusterCIDR", "range"}
	each := func(f writer.Family, value func(*metrics) float64) {
		for i := range s.Networks {
			m := &s.Networks[i]
			f.Add(value(m), m.ClusterCIDR.String(), m.Range)
		}
	}
	each(w.Counter(prefix+"cidrset_cidrs_allocations_total", "Blocks that were taken.", labels...), func(m *metrics) float64 { return float64(m.Allocations) })
	each(w.Counter(prefix+"cidrset_cidrs_releases_total", "Blocks that were released.", labels...), func(m *metrics) float64 { return float64(m.Releases) })
	each(w.Gauge(prefix+"cidrset_usage_cidrs", "Share of the blocks that are not free.", labels...), func(m *metrics) float64 { return m.Usage })
	each(w.Gauge(prefix+"cirdset_max_cidrs", "Number of blocks.", labels...), func(m *metrics) float64 { return float64(m.Max) })
	tries := w.Histogram(prefix+"cidrset_allocation_tries_per_request", "Blocks that were tried before a free one.", labels...)
	for i := range s.Networks {
		m := &s.Networks[i]
		var upTo []uint64
		for _, n := range m.Tries.Buckets {
			upTo = append(upTo, uint64(n))
		}
		tries.AddBuckets([]float64{1, 5, 25, 125, 625}, upTo, float64(m.Tries.Sum), m.ClusterCIDR.String(), m.Range)
	}
}

func boolean(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
