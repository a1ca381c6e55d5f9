package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/test/internal/page"
)

// reproduce is the command that measures all figures again.
const reproduce = "make bench"

// chartImage embeds the result of renderSVG, where make bench puts it.
const chartImage = "![ADD, DEL and VERSION compared with the reference plugins](docs/bench.svg)\n"

// renderMarkdown returns BENCHMARKS.md.
func renderMarkdown(res report) string {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	fmt.Fprintf(&b, "This page compares cnibox with the [reference plugins](https://github.com/containernetworking/plugins) %s. ", res.Reference)
	b.WriteString("Calls of both alternate on one machine. Read the ratios: the milliseconds depend on the machine.\n\n")
	fmt.Fprintf(&b, "To measure again, run `%s` as root. It builds both sides static and stripped and takes 35 to 50 minutes.\n\n", reproduce)
	fmt.Fprintf(&b, "Every figure is a median of %s, measured on: %s.\n\n", count(res.Runs, "run"), res.Machine)
	b.WriteString("## Summary\n\n")
	b.WriteString(renderTable(summaryHeader(), summaryCells(res)))
	b.WriteString("\n" + chartImage)
	b.WriteString(renderPercentiles(res.results))
	b.WriteString(renderPublished(res.Published))
	b.WriteString(renderAlloc(res.results))
	if res.Storm != nil {
		b.WriteString("\n## Storm\n\n" + page.Block(sectionStorm, renderStorm(res)) + "\n")
	}
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
func renderSummary(res report) string {
	var cells [][]string
	for _, c := range summaryCells(res) {
		if slices.Contains(inReadme(), c[0]) || strings.HasPrefix(c[0], sizeOnDisk) {
			cells = append(cells, c[:4])
		}
	}
	return renderTable(summaryHeader()[:4], cells) +
		fmt.Sprintf("\nMedians of %s on %s. All figures and the method: [BENCHMARKS.md](BENCHMARKS.md).\n", count(res.Runs, "run"), res.Machine)
}

func summaryHeader() []string {
	return []string{"what", "cnibox", "reference", "ratio", "target", ""}
}

func summaryCells(res report) [][]string {
	var cells [][]string
	for _, r := range res.Rows {
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
		add(fmt.Sprintf("ADD, %d at a time", p.AtATime), p.AddCalls)
		add(fmt.Sprintf("DEL, %d at a time", p.AtATime), p.DelCalls)
	}
	for _, l := range []struct {
		name string
		res  *chainResult
	}{{"the list", res.Chain}, {"the fused list", res.Fused}} {
		if c := l.res; c != nil {
			add("ADD of "+l.name, c.Add)
			add("CHECK of "+l.name, c.Check)
			add("DEL of "+l.name, c.Del)
			add(fmt.Sprintf("ADD of %s, %d at a time", l.name, c.Parallel.AtATime), c.Parallel.AddCalls)
			add(fmt.Sprintf("DEL of %s, %d at a time", l.name, c.Parallel.AtATime), c.Parallel.DelCalls)
		}
	}
	if n := res.Networks; n != nil {
		add("ADD, 1 network (multi)", n.Add.One)
		add(fmt.Sprintf("ADD, %d networks (multi)", manyNetworks), n.Add.Many)
		add("DEL, 1 network (multi)", n.Del.One)
		add(fmt.Sprintf("DEL, %d networks (multi)", manyNetworks), n.Del.Many)
	}
	for _, i := range res.Interfaces {
		add("ADD "+i.name(), i.Add)
		add("CHECK "+i.name(), i.Check)
		add("DEL "+i.name(), i.Del)
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
	b.WriteString("\n## Cost of a start\n\n")
	b.WriteString(renderTable(
		[]string{"binary", "size", "package initialisers", "packages", "outside the standard library", "modules"},
		[][]string{line("cnibox", s.OursBridge), line("reference bridge", s.PeerBridge), line("reference host-local", s.PeerHostLocal)}))
	fmt.Fprintf(&b, "\nSize of all files: cnibox %s (%s), the reference plugins %s (%s).\n\n",
		megabytes(s.OursBytes), files(s.OursFiles), megabytes(s.PeerBytes), files(s.PeerFiles))
	fmt.Fprintf(&b, "Slowest initialisers: cnibox %s; reference bridge %s.\n", initList(s.OursBridge.Top), initList(s.PeerBridge.Top))
	return b.String()
}

func initList(costs []initCost) string {
	var parts []string
	for _, c := range costs {
		parts = append(parts, fmt.Sprintf("%s %s", c.Package, ms(c.Clock)))
	}
	return strings.Join(parts, ", ")
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// timesOver returns how often something is done.
func timesOver(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// renderMethod describes the method, so that a reader can check how a ratio was measured.
func renderMethod(res report) string {
	lines := []string{
		"Everything runs in a private network and mount namespace. The state of both sides is in memory, in a tmpfs on /run.",
		"The programs of both sides are copies, each placed by one sequential write of the whole file. Each side executes its copies through symbolic links. " +
			"Before that the page cache is dropped and memory is compacted. Where a copy lies in memory still changes the time of a start by up to a half, so each run makes its own copies.",
		"A call is timed from before the fork until the process is reaped. Input and output are files in memory. The side that goes first changes every round.",
		fmt.Sprintf("Runs: all sections are measured %s. Each run has new namespaces. Within a run, calls of both sides alternate. A row of the summary "+
			"is copied from the run with the median of its ratio, so that its times and its ratio belong together. In the other tables and the chart, the figures of "+
			"both sides for one operation are from the run with the median ratio. If only cnibox is measured, they are from the run with its median time.", timesOver(res.Runs)),
		fmt.Sprintf("A run has %d rounds (%d for VERSION of bridge) after %d that are not counted. Every ADD gets a new network namespace, made before the clock starts. Each side has "+
			"its own bridge and subnet. A round is ADD, CHECK and DEL of one container of each side. A side never has more than one container then, which is the best case for "+
			"rules that grow with every container.", res.Rounds, versionFactor*res.Rounds, warmRounds),
		"Nftables backend: both sides are configured with `ipMasqBackend: nftables`. Without it the reference uses iptables; its DEL cleans up both backends " +
			"in both cases. cnibox has one backend and executes no program.",
		"host-local is executed directly. The free addresses of a filled pool are spread evenly, and both sides start with the same host-local data directory.",
		"CHECK verifies different properties on the two sides.",
	}
	if res.Chain != nil {
		lines = append(lines, "The list is what podman and nerdctl write: bridge (host-local, ipMasq), portmap with one TCP port for each container, firewall, and "+
			"tuning without keys. Its time is the sum of the four processes.")
	}
	if res.Fused != nil {
		lines = append(lines, "The fused list is the same list in one plugin, `chain`, as `cnibox fuse` writes it. It is compared with the same calls of the four plugins of the reference.")
	}
	if len(res.Published) > 0 {
		lines = append(lines, fmt.Sprintf("Published ports: one side at a time has containers with %d ports each, up to the number in the table. Then %d "+
			"containers are added and deleted, and %d connections are made from another namespace to a port that was published last. The time of a connection is that of "+
			"connect(2). Its CPU time is that of the calling thread, in which the kernel handles the packets.", portsEach, publishedRounds, connections))
	}
	if n := res.Networks; n != nil {
		line := fmt.Sprintf("Several networks: bridges with host-local addresses, the first with ipMasq. The configuration lists them as delegates, so that no annotation and no API "+
			"server is needed. The %d networks are not those of the pod with one network.", manyNetworks)
		if n.Multus {
			line += " The reference is Multus thin with the reference plugins."
		} else {
			line += " Multus was not measured, because it was not given: see test/peers/README.md."
		}
		lines = append(lines, line)
	}
	if len(res.Interfaces) > 0 {
		lines = append(lines, fmt.Sprintf("ptp, macvlan and tap have host-local addresses. With IPv6 the reference waits in ADD until duplicate address "+
			"detection is done, for at most 5 seconds, so that only %d rounds are counted. cnibox adds the addresses without duplicate address detection. net.ipv6.conf.all.forwarding is 0 at the start of each measurement, and 1 where the table says so.", min(res.Rounds, waitingRounds)))
	}
	if p := res.Parallel; p != nil {
		lines = append(lines, fmt.Sprintf("%d at a time: %d workers add %d containers and delete them, one side after the other. The rate is calls per second of wall time.", p.AtATime, p.AtATime, p.Containers))
	}
	var b strings.Builder
	b.WriteString("\n## Method\n\n")
	for _, l := range append(lines, res.Notes...) {
		b.WriteString("- " + l + "\n")
	}
	return b.String()
}
