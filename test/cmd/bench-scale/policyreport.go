package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	mostPolicyChange = 20 * time.Millisecond
	mostLabelChange  = 5 * time.Millisecond
	// leastMembers is the rate of 250 addresses in mostPolicyChange.
	leastMembers    = 12_500.0
	mostPolicyPeak  = 150 << 10 // KiB
	mostConnect     = 1.15
	mostTrip        = 1.05
	mostADDIncrease = 5 * time.Millisecond
)

func quantile(all []seconds, q float64) seconds {
	all = slices.Sorted(slices.Values(all))
	return all[int(q*float64(len(all)-1)+0.5)]
}

// ratio returns the shortest time with policies relative to that without: other work only delays.
func ratio(of *[3][]seconds, kind int) float64 {
	return float64(slices.Min(of[kind])) / float64(slices.Min(of[0]))
}

func policiesMarkdown(ours []policed, theirs *policed, failure error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "`make bench-policy` measures again and writes this section. A real agent follows a real kube-apiserver on one machine with %d processors. The node has %d pods.\n"+
		"Measured on %s, load average %s at the end. Above the number of processors, other work delays what is measured.\n\n"+
		"A change is in force when the first datagram of a new connection arrives that was forbidden before. The time begins when a second watch of the\n"+
		"object receives the change from the API server. Each policy has in both directions 5 ports, 5 ranges of ports, 5 networks and 2 selectors of pods.\n\n",
		runtime.NumCPU(), localPods, time.Now().UTC().Format(time.DateOnly), load())
	for i := range ours {
		p := &ours[i]
		fmt.Fprintf(&b, "%s:\n\n| what | measured | target | |\n|---|---:|---:|---|\n", strings.ToUpper(p.shape.name[:1])+p.shape.name[1:])
		line := func(what, have, target string, ok bool) {
			word := map[bool]string{true: "met", false: "not met"}[ok]
			if target == "" {
				word = ""
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", what, have, target, word)
		}
		change := func(what string, all []seconds, most seconds) {
			x := quantile(all, 0.99)
			line(fmt.Sprintf("%s, p50 and p99 of %d", what, len(all)), ms(median(all))+", "+ms(x), "≤ "+ms(most), x <= most)
		}
		line("the agent's start until policies are in force", ms(p.start), "", true)
		change("a changed policy", p.policy, mostPolicyChange)
		change("a changed label of a pod", p.label, mostLabelChange)
		change(fmt.Sprintf("a changed label of a namespace with %d pods", smallPods), p.namespace, mostPolicyChange)
		if len(p.big) > 0 {
			rate := bigPods / median(p.big).Seconds()
			line(fmt.Sprintf("a changed label of a namespace with %d pods, p50", bigPods), fmt.Sprintf("%s, %.0f addresses/s", ms(median(p.big)), rate), fmt.Sprintf("≥ %.0f addresses/s", leastMembers), rate >= leastMembers)
		}
		line("peak of the agent's resident memory", fmt.Sprintf("%.1f MB", float64(p.peak)/1024), "≤ 150 MB", p.peak <= mostPolicyPeak)
		if p.kernel > 0 {
			line("the kernel's memory for the agent and its objects", fmt.Sprintf("%.1f MB", float64(p.kernel)/1024), "", true)
		}
		line(fmt.Sprintf("CPU without changes, in %s", p.shape.quiet), fmt.Sprintf("%.1f %%", 100*p.idle), "about 0", p.idle < 0.01)
		if len(p.connect[0]) > 0 {
			for _, of := range []struct {
				what string
				all  *[3][]seconds
				most float64
			}{{"a new connection between pods", &p.connect, mostConnect}, {"a round trip on an established one", &p.trips, mostTrip}, {fmt.Sprintf("%d MiB and back on an established one", bulkBytes>>20), &p.bulk, mostTrip}} {
				line(of.what+", without policies", micro(slices.Min(of.all[0])), "", true)
				for i, which := range []string{"first", "last"} {
					x := ratio(of.all, i+1)
					line(fmt.Sprintf("one that the %s of the pods' policies allows", which), fmt.Sprintf("%.3f × (%s)", x, micro(slices.Min(of.all[i+1]))), fmt.Sprintf("≤ %.2f ×", of.most), x <= of.most)
				}
			}
		}
		if len(p.add[0]) > 0 {
			more := median(p.add[1]) - median(p.add[0])
			line("ADD of ptp, p50", fmt.Sprintf("%s more than %s beside an agent without policies", ms(more), ms(median(p.add[0]))), "≤ "+ms(mostADDIncrease)+" more", more <= mostADDIncrease)
		}
		b.WriteString("\n")
		if p.shape.big {
			b.WriteString(p.manyAgents())
		}
	}
	if theirs == nil {
		fmt.Fprintf(&b, "kube-router's controller of network policies, v2.10.0, is not compared: %v.\n", failure)
		return b.String()
	}
	fmt.Fprintf(&b, "kube-router's controller of network policies, v2.10.0 with iptables and ipset, in the same run, with the second shape and the same pods:\n\n"+
		"| what | cnibox | kube-router | ratio |\n|---|---:|---:|---:|\n")
	first := &ours[slices.IndexFunc(ours, func(p policed) bool { return p.shape.peer })]
	both := func(what string, x, y seconds) {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f × as fast |\n", what, ms(x), ms(y), float64(y)/float64(x))
	}
	both("start until policies are in force", first.start, theirs.start)
	both("a changed policy, p50", median(first.policy), median(theirs.policy))
	both("a changed label of a pod, p50", median(first.label), median(theirs.label))
	both("a changed label of a namespace, p50", median(first.namespace), median(theirs.namespace))
	for i, what := range []string{"first", "last"} {
		fmt.Fprintf(&b, "| a new connection that the %s policy allows, to one without policies | %.3f × | %.3f × | |\n", what, ratio(&first.connect, i+1), ratio(&theirs.connect, i+1))
	}
	fmt.Fprintf(&b, "| peak of the resident memory | %.1f MB | %.1f MB | |\n", float64(first.peak)/1024, float64(theirs.peak)/1024)
	fmt.Fprintf(&b, "\nkube-router's medians are of %d changes. It is built without its router and its proxy, and with netlink v1.3.1, because the module proxy does not serve the version that it requires.\n", theirs.shape.changes)
	return b.String()
}

// manyAgents calculates what many agents cost an API server.
func (p *policed) manyAgents() string {
	const agents, changesPerPod = 1000, 5
	kb := func(bytes int) string { return fmt.Sprintf("%.1f KB", float64(bytes)/1000) }
	return fmt.Sprintf("On paper, %d such agents: the agent read %.1f MB until its policies were in force, and then %s for a changed policy and %s for a changed label of a pod. "+
		"All that start at once read %.0f GB. A changed pod costs the API server %.1f MB, and 10 new pods a second, each changed %d times until it is ready, %.0f MB a second. "+
		"A pod of this measurement is smaller than those of kubelet, and the bytes grow with it. ADDs that come together are published by one write and withdrawn by another, and each is sent to all agents.\n\n",
		agents, float64(p.first)/1e6, kb(p.each[0]), kb(p.each[1]), float64(agents*p.first)/1e9, float64(agents*p.each[1])/1e6, changesPerPod, float64(agents*p.each[1]*10*changesPerPod)/1e6)
}

// load returns the load average of the last five minutes.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); len(f) > 1 {
		return f[1]
	}
	return "unknown"
}

func micro(d seconds) string { return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond)) }
