package main

import (
	"testing"
	"time"
)

// exampleResults returns round figures that are on the targets or just beside them.
func exampleResults() *results {
	both := func(ours, peer time.Duration) compared {
		return compared{
			Ours: stat{N: 200, P50: ours, P90: 2 * ours, P99: 3 * ours},
			Peer: stat{N: 200, P50: peer, P90: 2 * peer, P99: 3 * peer},
		}
	}
	us := time.Microsecond
	version := both(2400*us, 2000*us)
	return &results{
		Machine:   machine{CPU: "a <processor> & more", Cores: 2, MemGB: 8, Kernel: "6.1", Go: "go1.26", Date: "2026-01-02"},
		Reference: "v1.2.3",
		Rounds:    200,
		Version:   &version,
		Bridge:    &bridgeResult{Add: both(7000*us, 42000*us), Check: both(3000*us, 12000*us), Del: both(30000*us, 119000*us)},
		NFT:       &bridgeResult{Add: both(7000*us, 70000*us), Check: both(3000*us, 15000*us), Del: both(25000*us, 100000*us)},
		Parallel: &parallelResult{
			Containers: 200, AtATime: 16, Add: rates{240, 40}, Del: rates{219, 20},
			AddCalls: both(1, 1), DelCalls: both(1, 1),
		},
		Networks: &networksResult{
			Add:    networksVerb{One: both(5000*us, 40000*us), Many: both(8000*us, 120000*us)},
			Del:    networksVerb{One: both(10000*us, 50000*us), Many: both(16001*us, 150000*us)},
			Multus: true,
		},
		Interfaces: []interfaceResult{
			{Plugin: "ptp", With: withMasq, Family: "IPv4", Target: 4, Add: both(5000*us, 20000*us), Check: both(5000*us, 10000*us), Del: both(30000*us, 50000*us)},
			{Plugin: "tap", Family: "IPv4", Target: 2.2, Add: both(10000*us, 21999*us), Check: both(5000*us, 4999*us), Del: both(30001*us, 30000*us)},
			{Plugin: loopback, Target: notSlower, Add: both(5000*us, 5000*us), Check: both(5000*us, 5000*us), Del: both(5001*us, 5000*us)},
			{Plugin: "ptp", Family: "IPv6", Target: 20, Add: both(100000*us, 1999000*us), Check: both(5000*us, 10000*us), Del: both(30000*us, 50000*us)},
		},
		Roles: []roleVersion{{Role: "ptp", Calls: both(2000*us, 2000*us)}, {Role: "tap", Calls: both(2401*us, 2000*us)}},
		Alloc: []allocResult{
			{Full: "0", InProcess: 100 * us, Exec: both(3000*us, 3300*us)},
			{Full: "50", Addresses: 32766, InProcess: 1001 * us, Exec: both(3000*us, 390000*us)},
			{Full: "99.9", Addresses: 65467, InProcess: 4000 * us, Exec: both(3000*us, 820000*us)},
		},
		Startup: &startupResult{
			OursBridge: bill{Init: 500 * us, Top: []initCost{{"main", 40 * us}}, Packages: 150, Foreign: 30, Modules: 9, Bytes: 10_000_000},
			OursBytes:  20_000_000, PeerBytes: 68_000_000, OursFiles: 1, PeerFiles: 18,
		},
		Notes: []string{"a note"},
	}
}

func TestVerdicts(t *testing.T) {
	want := map[string]string{
		"VERSION (start, answer, exit), p50":              "met",
		"ADD bridge + host-local + ipMasq, p50":           "met",
		"VERSION of the role with the largest ratio, p50": "not met",
		"CHECK, p50":                                  "met",
		"DEL, p50":                                    "not met",
		"ADD, nftables backend, p50":                  "met",
		"CHECK, nftables backend, p50":                "met",
		"DEL, nftables backend, p50":                  "met",
		"ADD, 16 at a time":                           "met",
		"DEL, 16 at a time":                           "not met",
		"ADD, 3 networks (multi, Multus), p50":        "met",
		"ADD, 1 network (multi, Multus), p50":         "met",
		"DEL, 3 networks (multi, Multus), p50":        "met",
		"DEL, 1 network (multi, Multus), p50":         "not met",
		"ADD ptp + ipMasq, IPv4, p50":                 "met",
		"DEL ptp + ipMasq, IPv4, p50":                 "met",
		"ADD tap, IPv4, p50":                          "not met",
		"DEL tap, IPv4, p50":                          "not met",
		"CHECK ptp + ipMasq, IPv4, p50":               "met",
		"CHECK tap, IPv4, p50":                        "not met",
		"CHECK ptp, IPv6, p50":                        "met",
		"ADD loopback, p50":                           "met",
		"CHECK loopback, p50":                         "met",
		"DEL loopback, p50":                           "not met",
		"ADD ptp, IPv6, p50":                          "not met",
		"DEL ptp, IPv6, p50":                          "met",
		"host-local ADD, /16 0 % full, p50":           "met",
		"the allocation in it, /16 0 % full, mean":    "",
		"host-local ADD, /16 50 % full, p50":          "met",
		"the allocation in it, /16 50 % full, mean":   "not met",
		"host-local ADD, /16 99.9 % full, p50":        "met",
		"the allocation in it, /16 99.9 % full, mean": "met",
		"size on disk (1 file; reference 18 files)":   "met",
	}
	rows := summarize(exampleResults())
	if len(rows) != len(want) {
		t.Errorf("%d rows, want %d", len(rows), len(want))
	}
	for _, r := range rows {
		verdict, ok := want[r.What]
		if !ok {
			t.Errorf("unexpected row %q", r.What)
		}
		if r.verdict() != verdict {
			t.Errorf("%s: %q (%s of %s), want %q", r.What, r.verdict(), r.Ratio, r.Target, verdict)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                       "0.000 ms",
		31 * time.Microsecond:   "0.031 ms",
		2345 * time.Microsecond: "2.35 ms",
		35 * time.Millisecond:   "35.0 ms",
		820 * time.Millisecond:  "820 ms",
	} {
		if got := ms(d); got != want {
			t.Errorf("ms(%v) = %q, want %q", d, got, want)
		}
	}
}
