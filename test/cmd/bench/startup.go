package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	traceRuns = 20 // executions per binary whose init traces are put together
	topInits  = 5  // packages that are named
	peersDir  = "test/peers/reference"
)

// measureStartup reads the init traces and the sizes; addDependencies adds what needs the Go command.
func measureStartup(ctx context.Context, j job) (*startupResult, error) {
	res := &startupResult{}
	var err error
	res.OursBytes, err = totalSize(j.Sides.Ours.Files)
	if err != nil {
		return nil, err
	}
	res.PeerBytes, err = totalSize(j.Sides.Peer.Files)
	if err != nil {
		return nil, err
	}
	res.OursFiles, res.PeerFiles = len(j.Sides.Ours.Files), len(j.Sides.Peer.Files)
	for _, b := range []struct {
		side   side
		plugin string
		to     *bill
	}{
		{j.Sides.Ours, "bridge", &res.OursBridge},
		{j.Sides.Peer, "bridge", &res.PeerBridge},
		{j.Sides.Peer, "host-local", &res.PeerHostLocal},
	} {
		*b.to, err = traceInits(ctx, b.side, b.plugin)
		if err != nil {
			return nil, err
		}
		b.to.Bytes, err = totalSize([]string{filepath.Join(b.side.Dir, b.plugin)})
		if err != nil {
			return nil, err
		}
	}
	return res, nil
}

// traceInits executes VERSION with the runtime's init trace.
func traceInits(ctx context.Context, s side, plugin string) (bill, error) {
	var totals []time.Duration
	perPackage := map[string][]time.Duration{}
	for range traceRuns {
		a, err := s.do(ctx, call{Plugin: plugin, Verb: "VERSION", Conf: []byte(`{"cniVersion":"1.0.0"}`)}, "GODEBUG=inittrace=1")
		if err != nil {
			return bill{}, err
		}
		inits, err := parseInitTrace(a.Stderr)
		if err != nil {
			return bill{}, err
		}
		var total time.Duration
		for _, i := range inits {
			total += i.Clock
			perPackage[i.Package] = append(perPackage[i.Package], i.Clock)
		}
		totals = append(totals, total)
	}
	b := bill{Init: newStat(totals).P50}
	for name, clocks := range perPackage {
		b.Top = append(b.Top, initCost{Package: name, Clock: newStat(clocks).P50})
	}
	slices.SortFunc(b.Top, func(x, y initCost) int {
		if x.Clock != y.Clock {
			return int(y.Clock - x.Clock)
		}
		return strings.Compare(x.Package, y.Package)
	})
	b.Top = b.Top[:min(topInits, len(b.Top))]
	return b, nil
}

// parseInitTrace reads the lines that GODEBUG=inittrace=1 makes the runtime print, such as
//
//	init net @0.61 ms, 0.012 ms clock, 3000 bytes, 20 allocs
//
// (package runtime, "Environment Variables"). Other lines are the plugin's and are ignored.
func parseInitTrace(stderr []byte) ([]initCost, error) {
	line := regexp.MustCompile(`^init (\S+) @\S+ ms, (\S+) ms clock,`)
	var inits []initCost
	scanner := bufio.NewScanner(bytes.NewReader(stderr))
	for scanner.Scan() {
		m := line.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		clock, err := time.ParseDuration(m[2] + "ms")
		if err != nil {
			return nil, fmt.Errorf("parse init trace of %q: %w", m[1], err)
		}
		inits = append(inits, initCost{Package: m[1], Clock: clock})
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read init trace: %w", err)
	}
	if len(inits) == 0 {
		return nil, fmt.Errorf("read init trace: no line of it in %q", stderr)
	}
	return inits, nil
}

// totalSize returns the size of all files together; links are followed.
func totalSize(files []string) (int64, error) {
	var sum int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return 0, fmt.Errorf("measure binary: %w", err)
		}
		sum += info.Size()
	}
	return sum, nil
}

// addDependencies counts the packages and modules that each binary was linked from. It asks the Go command about the package and
// the tags that the binary contains.
func addDependencies(ctx context.Context, res *results, sides pair) error {
	for _, b := range []struct {
		file string
		to   *bill
	}{
		{filepath.Join(sides.Ours.Dir, "bridge"), &res.Startup.OursBridge},
		{filepath.Join(sides.Peer.Dir, "bridge"), &res.Startup.PeerBridge},
		{filepath.Join(sides.Peer.Dir, "host-local"), &res.Startup.PeerHostLocal},
	} {
		if err := countDependencies(ctx, b.file, b.to); err != nil {
			return err
		}
	}
	return nil
}

func countDependencies(ctx context.Context, file string, to *bill) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read build information: %w", err)
	}
	to.Modules = len(info.Deps)
	args := []string{"list", "-deps", "-f", "{{.Standard}}"}
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			args = append(args, "-tags", s.Value)
		}
	}
	cmd := exec.CommandContext(ctx, "go", append(args, info.Path)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if strings.HasPrefix(info.Path, "github.com/containernetworking/plugins/") {
		cmd.Dir = peersDir
	}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list dependencies of %q: %w", info.Path, err)
	}
	to.Packages = strings.Count(string(out), "\n")
	to.Foreign = strings.Count(string(out), "false")
	return nil
}
