// Command bench compares cnibox with the reference plugins on one machine, with alternating calls, and writes the medians of several
// runs as Markdown, as an SVG chart and into the marked block of a README.
//
//	go run ./test/cmd/bench -ours bin/cnibox -peers bin/peers -out BENCHMARKS.md -svg docs/bench.svg -readme README.md
//
// It needs root and runs at the top of the repository. Everything that touches the network runs in a private network and mount
// namespace. Of the machine only the page cache changes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/internal/page"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 2 && os.Args[1] == insideArg {
		err = runInside(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stderr)
	}
	if err != nil {
		stop()
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// options are read from the command line.
type options struct {
	oursBinary string
	oursDir    string
	peersDir   string
	multus     string
	markdown   string
	svg        string
	readme     string
	stormSVG   string
	only       string
	runs       int
	job        job
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.oursBinary, "ours", "bin/cnibox", "the cnibox `binary`")
	fs.StringVar(&o.oursDir, "ours-dir", "", "a plugin `directory` to measure in place of -ours")
	fs.StringVar(&o.peersDir, "peers", "bin/peers", "`directory` with the reference plugins")
	fs.StringVar(&o.multus, "multus", "", "the Multus `binary`, the thin plugin, to measure beside multi; empty leaves it out")
	fs.StringVar(&o.markdown, "out", "BENCHMARKS.md", "Markdown `file` to write; with -only storm its block \"storm\" is replaced; empty for none")
	fs.StringVar(&o.svg, "svg", "docs/bench.svg", "SVG `file` to write; empty for none")
	fs.StringVar(&o.readme, "readme", "", "`file` whose block \"bench\" is replaced; empty for none")
	fs.StringVar(&o.stormSVG, "storm-svg", "docs/storm.svg", "SVG `file` to write with the curves of the section storm; empty for none")
	fs.StringVar(&o.only, "only", "", "comma separated `sections` out of "+strings.Join(allSections(), ",")+"; default all")
	fs.IntVar(&o.runs, "runs", 3, "how many times all sections except storm are measured; the medians are written")
	fs.IntVar(&o.job.Rounds, "n", 200, "rounds of every one-at-a-time measurement in a run")
	fs.IntVar(&o.job.Parallel, "parallel", 16, "calls at a time in the parallel section")
	fs.IntVar(&o.job.Containers, "containers", 200, "containers in the parallel section")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("read arguments: unexpected %q", fs.Args())
	}
	if o.runs < 1 || o.job.Rounds < 1 || o.job.Parallel < 1 || o.job.Containers < 1 {
		return o, fmt.Errorf("read arguments: -runs, -n, -parallel and -containers must be at least 1")
	}
	var err error
	o.job.Sections, err = parseSections(o.only)
	return o, err
}

// parseSections returns the sections that -only names, in the order in which they run.
func parseSections(list string) ([]string, error) {
	if list == "" {
		return allSections(), nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(allSections(), name) {
			return nil, fmt.Errorf("read -only: no section %q; there are %s", name, strings.Join(allSections(), ","))
		}
	}
	var sections []string
	for _, name := range allSections() {
		if slices.Contains(wanted, name) {
			sections = append(sections, name)
		}
	}
	return sections, nil
}

// compactMemory lets earlier work on the machine have less influence on where the programs lie in memory.
func compactMemory() error {
	unix.Sync()
	for _, file := range []string{"drop_caches", "compact_memory"} {
		if err := os.WriteFile("/proc/sys/vm/"+file, []byte("1"), 0); err != nil {
			return fmt.Errorf("compact memory: %w", err)
		}
	}
	return nil
}

// run does the parts outside of the sandbox that need the Go command and the file system, which are prepare and render. The sandbox
// measures; each run has a new one.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "cnibox-bench-")
	if err != nil {
		return fmt.Errorf("make work directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := compactMemory(); err != nil {
		return err
	}
	if slices.Contains(o.job.Sections, sectionAlloc) {
		o.job.AllocTest, err = buildAllocBenchmark(ctx, work)
		if err != nil {
			return err
		}
	}
	res := report{results: &results{}}
	if sections := repeated(o.job.Sections); len(sections) > 0 {
		res, err = measureRuns(ctx, o, sections, work, stderr)
		if err != nil {
			return err
		}
	}
	if slices.Contains(o.job.Sections, sectionStorm) {
		j, err := prepareJob(o, []string{sectionStorm}, filepath.Join(work, sectionStorm))
		if err != nil {
			return err
		}
		storm, err := measureInSandbox(ctx, j, stderr)
		if err != nil {
			return err
		}
		res.Storm = storm.Storm
	}
	res.Machine, err = describeMachine(ctx)
	if err != nil {
		return err
	}
	res.Reference, err = referenceRelease(ctx, o.peersDir)
	if err != nil {
		return err
	}
	return write(o, res)
}

// repeated returns the sections that are measured in each run. The storm takes too long for that.
func repeated(sections []string) []string {
	return slices.DeleteFunc(slices.Clone(sections), func(s string) bool { return s == sectionStorm })
}

// measureRuns measures sections several times and returns the medians.
func measureRuns(ctx context.Context, o options, sections []string, work string, stderr io.Writer) (report, error) {
	var all []*results
	var j job
	for n := range o.runs {
		fmt.Fprintf(stderr, "bench: run %d of %d\n", n+1, o.runs)
		var err error
		j, err = prepareJob(o, sections, filepath.Join(work, strconv.Itoa(n)))
		if err != nil {
			return report{}, err
		}
		res, err := measureInSandbox(ctx, j, stderr)
		if err != nil {
			return report{}, err
		}
		all = append(all, res)
	}
	res, err := newReport(all)
	if err == nil && slices.Contains(sections, sectionStartup) {
		err = addDependencies(ctx, res.results, j.Sides)
	}
	return res, err
}

// prepareJob returns the order for some sections, with copies of the programs. Where a copy lies in memory changes the time of a
// start. Earlier copies stay, so that they do not make room in the same place.
func prepareJob(o options, sections []string, copies string) (j job, err error) {
	j = o.job
	j.Sections = sections
	j.Sides, err = prepareSides(o, copies)
	if err != nil {
		return j, err
	}
	j.Multus, err = prepareMultus(o, j.Sides, copies)
	return j, err
}

// write writes the results to every place that the command line names.
func write(o options, res report) error {
	for _, chart := range []struct{ path, content string }{{o.svg, renderSVG(res.results)}, {o.stormSVG, renderStormSVG(res.Storm)}} {
		if chart.path == "" || chart.content == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(chart.path), 0o755); err != nil {
			return fmt.Errorf("make directory of %q: %w", chart.path, err)
		}
		if err := os.WriteFile(chart.path, []byte(chart.content), 0o644); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
	}
	if len(repeated(o.job.Sections)) == 0 {
		return writeStorm(o.markdown, res)
	}
	markdown, err := withOthers(o.markdown, renderMarkdown(res))
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(markdown); err != nil {
		return fmt.Errorf("print results: %w", err)
	}
	if o.markdown != "" {
		if err := os.WriteFile(o.markdown, []byte(markdown), 0o644); err != nil {
			return fmt.Errorf("write tables: %w", err)
		}
	}
	if o.readme == "" {
		return nil
	}
	return page.Replace(o.readme, "bench", renderSummary(res))
}

// others begins the part of the page that other commands write: make bench-scale, make bench-ranges and make conformance.
const others = "<!-- others:start -->\n"

// withOthers adds that part of the present page.
func withOthers(path, markdown string) (string, error) {
	present, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return markdown, nil
	}
	if err != nil {
		return "", fmt.Errorf("read tables: %w", err)
	}
	if _, rest, found := strings.Cut(string(present), others); found {
		markdown += "\n" + others + rest
	}
	return markdown, nil
}

// writeStorm replaces the block of a page that was written earlier.
func writeStorm(path string, res report) error {
	if _, err := os.Stdout.WriteString(renderStorm(res)); err != nil {
		return fmt.Errorf("print results: %w", err)
	}
	if path == "" {
		return nil
	}
	return page.Replace(path, sectionStorm, renderStorm(res))
}
