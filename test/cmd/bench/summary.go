package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// row is one line of the summary: the measurement on both sides, and its target.
type row struct {
	What   string
	Ours   string
	Peer   string  // empty where there is nothing to compare with
	Ratio  string  // in words: "5.3 × as fast"
	Target string  // empty where no target was set
	Met    bool    // meaningful only with a target
	Key    float64 // orders the same row of several runs: the ratio, or the figure of a row without one
}

// verdict returns the last column.
func (r row) verdict() string {
	switch {
	case r.Target == "":
		return ""
	case r.Met:
		return "met"
	default:
		return "not met"
	}
}

// The targets, each against the reference plugins in the same run.
const (
	versionAtMost      = 1.2 // times the reference's time
	addAtLeast         = 6.0 // times as fast
	delAtLeast         = 4.0
	parallelAddAtLeast = 6.0
	parallelDelAtLeast = 11.0
	notSlower          = 1.0        // for every other verb
	exchangeAtMost     = 1.2        // times the exchange with the server alone
	binaryAtMost       = 20_000_000 // bytes, with all roles
)

// allocTargets are the in-process times by how full the pool is; an empty pool has no target.
func allocTargets() map[string]time.Duration {
	return map[string]time.Duration{"50": time.Millisecond, "99.9": 4 * time.Millisecond}
}

// summarize returns the rows of every section that ran.
func summarize(res *results) []row {
	var rows []row
	if res.Version != nil {
		rows = append(rows, versionRow(*res.Version))
	}
	if len(res.Roles) > 0 {
		rows = append(rows, rolesRow(res.Roles))
	}
	if res.Bridge != nil {
		rows = append(rows,
			speedRow("ADD bridge + host-local + ipMasq, p50", res.Bridge.Add, addAtLeast),
			speedRow("CHECK, p50", res.Bridge.Check, notSlower),
			speedRow("DEL, p50", res.Bridge.Del, delAtLeast))
	}
	if res.NFT != nil {
		rows = append(rows,
			speedRow("ADD, nftables backend, p50", res.NFT.Add, notSlower),
			speedRow("CHECK, nftables backend, p50", res.NFT.Check, notSlower),
			speedRow("DEL, nftables backend, p50", res.NFT.Del, notSlower))
	}
	if p := res.Parallel; p != nil {
		rows = append(rows,
			rateRow(fmt.Sprintf("ADD, %d at a time", p.AtATime), p.Add, parallelAddAtLeast),
			rateRow(fmt.Sprintf("DEL, %d at a time", p.AtATime), p.Del, parallelDelAtLeast))
	}
	if res.Chain != nil {
		rows = append(rows, res.Chain.summary("bridge + portmap + firewall + tuning, one port", "that list", chainAddAtLeast, chainDelAtLeast)...)
	}
	if res.Fused != nil {
		rows = append(rows, res.Fused.summary("fused list of bridge + portmap + firewall + tuning, one port", "the fused list", fusedAddAtLeast, fusedDelAtLeast)...)
	}
	rows = append(rows, publishedRows(res.Published)...)
	if res.Networks != nil {
		rows = append(rows, res.Networks.summary()...)
	}
	if res.Azure != nil {
		rows = append(rows, res.Azure.summary()...)
	}
	for _, i := range res.Interfaces {
		rows = append(rows,
			speedRow("ADD "+i.name()+", p50", i.Add, i.Target),
			speedRow("CHECK "+i.name()+", p50", i.Check, notSlower),
			speedRow("DEL "+i.name()+", p50", i.Del, notSlower))
	}
	for _, a := range res.Alloc {
		rows = append(rows, allocRows(a)...)
	}
	if d := res.DHCP; d != nil {
		rows = append(rows,
			speedRow("dhcp ADD for an existing interface, p50", d.Add, notSlower),
			row{What: "its exchange with the server alone, p50", Ours: ms(d.Exchange.P50), Key: float64(d.Exchange.P50)},
			speedRow("dhcp DEL, p50", d.Del, notSlower),
			dhcpRow(d.Checking))
	}
	if res.Startup != nil {
		rows = append(rows, sizeRow(*res.Startup))
	}
	return rows
}

// versionRow shows the time as a multiple of the reference's: a binary with all roles starts more slowly than one with a single role.
func versionRow(c compared) row {
	cost := ratio(float64(c.Ours.P50), float64(c.Peer.P50))
	return row{
		What: "VERSION (start, answer, exit), p50", Ours: ms(c.Ours.P50), Peer: ms(c.Peer.P50), Ratio: fmt.Sprintf("%.2f × the time", cost),
		Target: fmt.Sprintf("≤ %.1f ×", versionAtMost), Met: cost > 0 && cost <= versionAtMost, Key: c.key(),
	}
}

// rolesRow shows the role whose VERSION takes the largest multiple of the reference's time.
func rolesRow(list []roleVersion) row {
	worst := slices.MinFunc(list, func(a, b roleVersion) int { return cmp.Compare(a.Calls.speedup(), b.Calls.speedup()) })
	r := versionRow(worst.Calls)
	r.What = "VERSION of the role with the largest ratio, p50"
	r.Ratio += " (" + worst.Role + ")"
	return r
}

// dhcpRow shows what cnibox adds to the exchange with a server that checks addresses, as servers do by default.
func dhcpRow(d checkedDHCP) row {
	cost := ratio(float64(d.Add.Ours.P50), float64(d.Exchange.P50))
	return row{
		What: fmt.Sprintf("dhcp ADD, isc-dhcp-server's defaults (its exchange alone: %s), p50", ms(d.Exchange.P50)),
		Ours: ms(d.Add.Ours.P50), Peer: ms(d.Add.Peer.P50), Ratio: fmt.Sprintf("%.2f × the exchange", cost),
		Target: fmt.Sprintf("≤ %.1f ×", exchangeAtMost), Met: cost > 0 && cost <= exchangeAtMost, Key: cost,
	}
}

// speedRow compares medians; a target of 0 means that there is none.
func speedRow(what string, c compared, target float64) row {
	r := row{What: what, Ours: ms(c.Ours.P50), Peer: ms(c.Peer.P50), Ratio: times(c.speedup()), Key: c.key()}
	return r.withTarget(c.speedup(), target)
}

func rateRow(what string, c rates, target float64) row {
	r := row{What: what, Ours: perSecond(c.Ours), Peer: perSecond(c.Peer), Ratio: times(c.speedup()), Key: c.speedup()}
	return r.withTarget(c.speedup(), target)
}

func (r row) withTarget(speedup, target float64) row {
	if target > 0 {
		r.Target = fmt.Sprintf("≥ %g ×", target)
		r.Met = speedup >= target
	}
	return r
}

func allocRows(a allocResult) []row {
	rows := []row{speedRow(fmt.Sprintf("host-local ADD, /16 %s %% full, p50", a.Full), a.Exec, notSlower)}
	if a.InProcess == 0 {
		return rows
	}
	inside := row{What: fmt.Sprintf("the allocation in it, /16 %s %% full, mean", a.Full), Ours: ms(a.InProcess), Key: float64(a.InProcess)}
	if limit, ok := allocTargets()[a.Full]; ok {
		inside.Target = fmt.Sprintf("≤ %d ms", limit.Milliseconds())
		inside.Met = a.InProcess <= limit
	}
	return append(rows, inside)
}

// sizeOnDisk begins the row with the sizes of the binaries.
const sizeOnDisk = "size on disk"

func sizeRow(s startupResult) row {
	return row{
		What: fmt.Sprintf(sizeOnDisk+" (%s; reference %s)", files(s.OursFiles), files(s.PeerFiles)),
		Ours: megabytes(s.OursBytes), Peer: megabytes(s.PeerBytes),
		Ratio:  fmt.Sprintf("%.1f × smaller", ratio(float64(s.PeerBytes), float64(s.OursBytes))),
		Target: fmt.Sprintf("≤ %d MB", binaryAtMost/1_000_000), Met: s.OursBytes <= binaryAtMost,
	}
}

// ms prints a duration in milliseconds with about three significant digits.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	case v >= 1:
		return fmt.Sprintf("%.2f ms", v)
	default:
		return fmt.Sprintf("%.3f ms", v)
	}
}

// times keeps enough digits below 100, where the targets are, to show whether a ratio is above or below one.
func times(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f × as fast", v)
	case v < 100:
		return fmt.Sprintf("%.1f × as fast", v)
	default:
		return fmt.Sprintf("%.0f × as fast", v)
	}
}

func perSecond(v float64) string { return fmt.Sprintf("%.0f/s", v) }
func megabytes(n int64) string   { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
func files(n int) string         { return count(n, "file") }
