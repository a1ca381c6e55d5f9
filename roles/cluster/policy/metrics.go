package policy

import (
	"context"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
)

// maxDeniedPods bounds the pods with a metric of denied packets: a pod's name is a label.
const maxDeniedPods = 200

// counts are what the metrics are made of.
type counts struct {
	mu       sync.Mutex
	policies map[string]int // by kind
	// changed is when the first change arrived that is not in force, and unsaved when the first one that is not saved.
	changed, unsaved time.Time
	changes          metrics.Histogram
	// denied are the logged packets of pods by the direction.
	denied map[[2]string]int64
}

// arrived notes that a change has arrived.
func (c *counts) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.changed.IsZero() {
		c.changed = now
	}
	if c.unsaved.IsZero() {
		c.unsaved = now
	}
}

// inForce notes that the kernel has all changes that have arrived.
func (c *counts) inForce(policies map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed.IsZero() {
		c.changes.Observe(time.Since(c.changed))
	}
	c.changed, c.policies = time.Time{}, policies
}

// saved notes that all changes are saved.
func (c *counts) saved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsaved = time.Time{}
}

// addDenied counts logged packets.
func (c *counts) addDenied(line *control.Denied, n int64) {
	pod := line.ServerPod
	if line.Direction == "egress" {
		pod = line.ClientPod
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{pod, line.Direction}
	if _, known := c.denied[key]; !known && len(c.denied) >= maxDeniedPods {
		key[0] = "others"
	}
	if c.denied == nil {
		c.denied = map[[2]string]int64{}
	}
	c.denied[key] += n
}

// WriteMetrics writes the metrics of network policies. Every goroutine may call it.
func (k *Keeper) WriteMetrics(ctx context.Context, w *metrics.Writer) {
	force := 1.0
	if k.Fault() != "" || k.Unready() != nil {
		force = 0
	}
	w.Gauge("cnibox_policies_in_force", "1 if network policies are in force as they are written, else 0. 'cnibox agent status' has the reason.").Add(force)
	w.Gauge("cnibox_policies_invalid", "Files and objects of network policies that are not in force as they are written. 'cnibox policy list' names them.").Add(float64(len(k.Faults())))
	c := &k.counts
	c.mu.Lock()
	f := w.Gauge("cnibox_policies", "Network policies that the agent knows.", "kind")
	for _, kind := range []string{"NetworkPolicy", "ClusterNetworkPolicy"} {
		f.Add(float64(c.policies[kind]), kind)
	}
	w.Histogram("cnibox_policy_change_duration_seconds", "Time from the arrival of a change of policies, namespaces or pods until it is in force.").AddHistogram(&c.changes)
	var age time.Duration
	if !c.unsaved.IsZero() {
		age = time.Since(c.unsaved)
	}
	w.Gauge("cnibox_policies_saved_age_seconds", "How long the saved policies, which are in force if the agent does not answer, have been older than those in force. 0 while they are the same.").Add(age.Seconds())
	f = w.Counter("cnibox_policy_logged_packets_total", "Denied packets of a pod that the agent logged with -policy-log, 50 a second of all pods at most.", "pod", "direction")
	for key, n := range c.denied {
		f.Add(float64(n), key[:]...)
	}
	c.mu.Unlock()
	if denied, err := podfilter.DeniedPackets(ctx); err == nil {
		w.Counter("cnibox_policy_denied_packets_total", "Packets that network policies denied since the rules were made.").Add(float64(denied.Packets))
	}
}
