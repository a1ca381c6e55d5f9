package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// reproduce is the command that measures all figures again.
const reproduce = "make bench"

// chart embeds the result of renderSVG, where make bench puts it.
const chart = "![ADD, DEL and VERSION beside the reference plugins](docs/bench.svg)\n"

// renderMarkdown returns BENCHMARKS.md.
func renderMarkdown(res *results) string {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	b.WriteString("cnibox beside the [reference plugins](https://github.com/containernetworking/plugins) v1.9.1, measured in one run on one machine, ")
	b.WriteString("call by call in turn. Read the ratios: the milliseconds belong to the machine.\n\n")
	fmt.Fprintf(&b, "Reproduce with `%s` (root; builds both sides static and stripped; 10 to 15 minutes).\n\n", reproduce)
	fmt.Fprintf(&b, "Measured on: %s.\n\n", res.Machine)
	b.WriteString("## Summary\n\n")
	b.WriteString(renderTable(summaryHeader(), summaryCells(res)))
	b.WriteString("\n" + chart)
	b.WriteString(renderPercentiles(res))
	b.WriteString(renderPublished(res.Published))
	b.WriteString(renderAlloc(res))
	if res.Startup != nil {
		b.WriteString(renderStartup(*res.Startup))
	}
	b.WriteString(renderMethod(res))
	return b.String()
}

// inReadme lists the rows of the summary that the README shows. sizeOnDisk is a prefix.
func inReadme() []string {
	return []string{
		"ADD bridge + host-local + ipMasq, p50", "DEL, p50", "ADD, 16 at a time", "DEL, 16 at a time",
		"ADD bridge + portmap + firewall + tuning, one port, p50", "DEL bridge + portmap + firewall + tuning, one port, p50",
		"host-local ADD, /16 99.9 % full, p50", sizeOnDisk,
	}
}

// renderSummary returns the block between the markers of the README: a few rows of the summary, without the targets.
func renderSummary(res *results) string {
	var cells [][]string
	for _, c := range summaryCells(res) {
		if slices.Contains(inReadme(), c[0]) || strings.HasPrefix(c[0], sizeOnDisk) {
			cells = append(cells, c[:4])
		}
	}
	return renderTable(summaryHeader()[:4], cells) +
		fmt.Sprintf("\nMeasured on %s. All figures and the method: [BENCHMARKS.md](BENCHMARKS.md).\n", res.Machine)
}

func summaryHeader() []string {
	return []string{"what", "cnibox", "reference", "ratio", "target", ""}
}

func summaryCells(res *results) [][]string {
	var cells [][]string
	for _, r := range summarize(res) {
		cells = append(cells, []string{r.What, r.Ours, r.Peer, r.Ratio, r.Target, r.verdict()})
	}
	return cells
}

// renderTable returns a Markdown table. All columns except the first are right-aligned, and they are padded so that the source is
// readable.
func renderTable(header []string, cells [][]string) string {
	widths := make([]int, len(header))
	for _, line := range append([][]string{header}, cells...) {
		for i, cell := range line {
			widths[i] = max(widths[i], runeLen(cell), 3)
		}
	}
	var b strings.Builder
	writeLine := func(line []string) {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-runeLen(cell))
			if i == 0 {
				b.WriteString("| " + cell + pad + " ")
			} else {
				b.WriteString("| " + pad + cell + " ")
			}
		}
		b.WriteString("|\n")
	}
	writeLine(header)
	for i, w := range widths {
		if i == 0 {
			b.WriteString("|" + strings.Repeat("-", w+2))
		} else {
			b.WriteString("|" + strings.Repeat("-", w+1) + ":")
		}
	}
	b.WriteString("|\n")
	for _, line := range cells {
		writeLine(line)
	}
	return b.String()
}

func runeLen(s string) int { return len([]rune(s)) }

// renderPercentiles returns p50, p90 and p99 of everything that was timed call by call.
func renderPercentiles(res *results) string {
	var cells [][]string
	add := func(what string, c compared) {
		line := []string{what, ms(c.Ours.P50), ms(c.Ours.P90), ms(c.Ours.P99), ms(c.Peer.P50), ms(c.Peer.P90), ms(c.Peer.P99), strconv.Itoa(c.Ours.N)}
		if c.Peer.N == 0 {
			line[4], line[5], line[6] = "", "", ""
		}
		cells = append(cells, line)
	}
	if res.Version != nil {
		add("VERSION", *res.Version)
	}
	for _, backend := range []struct {
		name string
		res  *bridgeResult
	}{{"", res.Bridge}, {", nftables backend", res.NFT}} {
		if backend.res != nil {
			add("ADD"+backend.name, backend.res.Add)
			add("CHECK"+backend.name, backend.res.Check)
			add("DEL"+backend.name, backend.res.Del)
		}
	}
	if p := res.Parallel; p != nil {
		add(fmt.Sprintf("ADD, %d at a time", p.AtATime), compared{p.OursAdd, p.PeerAdd})
		add(fmt.Sprintf("DEL, %d at a time", p.AtATime), compared{p.OursDel, p.PeerDel})
	}
	for _, l := range []struct {
		name string
		res  *chainResult
	}{{"the list", res.Chain}, {"the fused list", res.Fused}} {
		if c := l.res; c != nil {
			add("ADD of "+l.name, c.Add)
			add("DEL of "+l.name, c.Del)
			add(fmt.Sprintf("ADD of %s, %d at a time", l.name, c.Parallel.AtATime), compared{c.Parallel.OursAdd, c.Parallel.PeerAdd})
			add(fmt.Sprintf("DEL of %s, %d at a time", l.name, c.Parallel.AtATime), compared{c.Parallel.OursDel, c.Parallel.PeerDel})
		}
	}
	if n := res.Networks; n != nil {
		add("ADD, 1 network (multi)", n.Add.One)
		add(fmt.Sprintf("ADD, %d networks (multi)", manyNetworks), n.Add.Many)
		add("DEL, 1 network (multi)", n.Del.One)
		add(fmt.Sprintf("DEL, %d networks (multi)", manyNetworks), n.Del.Many)
	}
	for _, i := range res.Interfaces {
		add(fmt.Sprintf("ADD %s%s, %s", i.Plugin, i.With, i.Family), i.Add)
		add(fmt.Sprintf("DEL %s%s, %s", i.Plugin, i.With, i.Family), i.Del)
	}
	for _, r := range res.Roles {
		add("VERSION of "+r.Role, r.Calls)
	}
	if d := res.DHCP; d != nil {
		add("dhcp ADD", d.Add)
		add("dhcp DEL", d.Del)
	}
	if cells == nil {
		return ""
	}
	header := []string{"one call", "cnibox p50", "p90", "p99", "reference p50", "p90", "p99", "calls"}
	return "\n## Percentiles\n\n" + renderTable(header, cells)
}

// renderAlloc returns the allocation times by how full the pool is.
func renderAlloc(res *results) string {
	if len(res.Alloc) == 0 {
		return ""
	}
	var cells [][]string
	for _, a := range res.Alloc {
		inside := "not measured"
		if a.InProcess > 0 {
			inside = ms(a.InProcess)
		}
		cells = append(cells, []string{
			a.Full + " %", strconv.Itoa(a.Addresses), inside, ms(a.Exec.Ours.P50), ms(a.Exec.Peer.P50), times(a.Exec.speedup()),
		})
	}
	header := []string{"/16 full", "addresses taken", "cnibox in process", "cnibox host-local ADD", "reference host-local ADD", "ratio"}
	return "\n## Allocation\n\n" + renderTable(header, cells)
}

// renderStartup returns the cost of every execution.
func renderStartup(s startupResult) string {
	line := func(name string, b bill) []string {
		return []string{
			name, megabytes(b.Bytes), ms(b.Init), strconv.Itoa(b.Packages), strconv.Itoa(b.Foreign), strconv.Itoa(b.Modules),
		}
	}
	var b strings.Builder
	b.WriteString("\n## Start-up bill\n\n")
	b.WriteString(renderTable(
		[]string{"binary", "size", "package initialisers", "packages", "not of the standard library", "modules"},
		[][]string{line("cnibox", s.OursBridge), line("reference bridge", s.PeerBridge), line("reference host-local", s.PeerHostLocal)}))
	fmt.Fprintf(&b, "\nAll of it on disk: cnibox %s (%s), the reference plugins %s (%s).\n\n",
		megabytes(s.OursBytes), files(s.OursFiles), megabytes(s.PeerBytes), files(s.PeerFiles))
	fmt.Fprintf(&b, "Dearest initialisers: cnibox %s; reference bridge %s.\n", initList(s.OursBridge.Top), initList(s.PeerBridge.Top))
	return b.String()
}

func initList(costs []initCost) string {
	var parts []string
	for _, c := range costs {
		parts = append(parts, fmt.Sprintf("%s %s", c.Package, ms(c.Clock)))
	}
	return strings.Join(parts, ", ")
}

// renderMethod describes the method, so that a reader can check how a ratio was measured.
func renderMethod(res *results) string {
	lines := []string{
		"Everything runs in a network and mount namespace of its own, with the state of both sides in memory (a tmpfs on /run).",
		"A call is timed from before the fork until the process is reaped; input and output are memory files. Who goes first swaps every round.",
		fmt.Sprintf("%d rounds (VERSION %d times as many) after %d that are not counted. Every ADD gets a fresh network namespace, made before the clock starts; each side has "+
			"its own bridge and subnet. One at a time means ADD, CHECK and DEL of one container, then the next: no side has more than one "+
			"container then, which is the best case of rules that grow with every container.", res.Rounds, versionFactor, warmRounds),
		"Nftables backend: both sides are given `ipMasqBackend: nftables`. Without it the reference uses iptables; its DEL cleans up both backends " +
			"whatever was used. cnibox has one backend and executes no program.",
		"host-local is executed on its own. The filled pools have their free addresses spread evenly, and both sides start from the same host-local data directory.",
		"CHECK is not the same work on both sides: each verifies what it promises to.",
	}
	if res.Chain != nil {
		lines = append(lines, "The list is what podman and nerdctl write: bridge (host-local, ipMasq), portmap with one TCP port of its own for each container, firewall and "+
			"tuning without keys. Its time is that of all four processes.")
	}
	if res.Fused != nil {
		lines = append(lines, "The fused list is the same list on our side in one plugin, `chain`, as `cnibox fuse` writes it, beside the four plugins of the reference.")
	}
	if len(res.Published) > 0 {
		lines = append(lines, fmt.Sprintf("Published ports: one side at a time has containers with %d ports each until as many are published as the table says; then %d "+
			"containers come and go, and %d connections are made from another namespace to a port that was published last. The connection's time is that of connect(2); its CPU "+
			"time that of the thread in it, in whose context the kernel handles the packets.", portsEach, publishedRounds, connections))
	}
	if n := res.Networks; n != nil {
		line := fmt.Sprintf("Several networks: bridges with host-local addresses, the first with ipMasq, named in the configuration as delegates, so that neither annotations nor an API "+
			"server are in it. The %d networks are other ones than those of the pod with one.", manyNetworks)
		if n.Multus {
			line += " The peer is Multus thin with the reference plugins."
		} else {
			line += " Multus was not there to be measured: see test/peers/README.md."
		}
		lines = append(lines, line)
	}
	if len(res.Interfaces) > 0 {
		lines = append(lines, fmt.Sprintf("ptp, macvlan and tap have host-local addresses, ptp also ipMasq. With IPv6 the reference waits in ADD until duplicate address "+
			"detection is done, or for 5 seconds, and %d rounds are counted; cnibox adds addresses without it.", waitingRounds))
	}
	if p := res.Parallel; p != nil {
		lines = append(lines, fmt.Sprintf("At a time: %d containers by %d workers, one side after the other; calls per second of wall time.", p.Containers, p.AtATime))
	}
	var b strings.Builder
	b.WriteString("\n## Method\n\n")
	for _, l := range append(lines, res.Notes...) {
		b.WriteString("- " + l + "\n")
	}
	return b.String()
}
