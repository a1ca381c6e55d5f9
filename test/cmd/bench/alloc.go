package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// allocPackage holds BenchmarkAllocate, whose sub-benchmarks are named full=0, full=50 and full=99.9.
const allocPackage = "roles/ipam/hostlocal"

// poolSize is the number of addresses that host-local assigns from a /16: all except network, broadcast and gateway address.
const poolSize = 1<<16 - 3

// fillLevels lists how full the pool is, and how many executions of each side are timed. With a full pool the reference reads
// 65,000 files.
func fillLevels() []fillLevel {
	return []fillLevel{{"0", 0, 50}, {"50", poolSize / 2, 10}, {"99.9", poolSize * 999 / 1000, 5}}
}

type fillLevel struct {
	Full      string // percent
	Addresses int
	Rounds    int
}

// buildAllocBenchmark compiles the test binary outside of the sandbox, where the module cache and the network are, and returns its
// path; empty if the package has no tests.
func buildAllocBenchmark(ctx context.Context, work string) (string, error) {
	if tests, err := filepath.Glob(filepath.Join(allocPackage, "*_test.go")); err != nil || len(tests) == 0 {
		return "", err
	}
	binary := filepath.Join(work, "alloc.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./"+allocPackage)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build benchmark of %s: %w: %s", allocPackage, err, out)
	}
	return binary, nil
}

// measureAlloc times one allocation from a /16 at every level.
func measureAlloc(ctx context.Context, j job, res *results) error {
	inProcess := map[string]time.Duration{}
	if j.AllocTest == "" {
		res.Notes = append(res.Notes, "in-process allocation was not measured: there are no tests in "+allocPackage)
	} else {
		out, err := runAllocBenchmark(ctx, j.AllocTest)
		if err != nil {
			return err
		}
		if inProcess = parseBenchmarks(out); len(inProcess) == 0 {
			res.Notes = append(res.Notes, "in-process allocation was not measured: "+allocPackage+" has no BenchmarkAllocate")
		}
	}
	for index, level := range fillLevels() {
		exec, err := measureAllocExec(ctx, j, index, level)
		if err != nil {
			return fmt.Errorf("pool %s %% full: %w", level.Full, err)
		}
		res.Alloc = append(res.Alloc, allocResult{
			Full: level.Full, Addresses: level.Addresses, InProcess: inProcess[level.Full], Exec: exec,
		})
	}
	return nil
}

// runAllocBenchmark runs the compiled Go benchmark with its temporary files in memory.
func runAllocBenchmark(ctx context.Context, binary string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", "^BenchmarkAllocate$", "-test.benchtime", "200x")
	cmd.Dir = filepath.Join(dataDir, "tmp")
	// The sandbox is already a separate host: another one, of the tests, would hide TMPDIR.
	cmd.Env = append(os.Environ(), "TMPDIR="+cmd.Dir, "CNIBOX_NETOPSTEST_HOST=ready")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run BenchmarkAllocate: %w: %s", err, out)
	}
	return string(out), nil
}

// parseBenchmarks reads the lines of BenchmarkAllocate, such as
//
//	BenchmarkAllocate/full=99.9-2   200   1234567 ns/op
//
// into time per operation by percentage. The -2 is GOMAXPROCS, which the testing package leaves out when it is 1.
func parseBenchmarks(out string) map[string]time.Duration {
	line := regexp.MustCompile(`(?m)^BenchmarkAllocate/full=([0-9.]+)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)
	found := map[string]time.Duration{}
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		if ns, err := strconv.ParseFloat(m[2], 64); err == nil {
			found[m[1]] = time.Duration(ns)
		}
	}
	return found
}

// measureAllocExec executes host-local on both sides with data directories of the same content. Releasing the addresses is not
// timed. The first round is not counted, since a side may import the directory in it.
func measureAllocExec(ctx context.Context, j job, index int, level fillLevel) (_ compared, err error) {
	var t timings
	containers, err := newContainers(fmt.Sprintf("alloc%d", index), 1)
	if err != nil {
		return compared{}, err
	}
	defer func() {
		if dropErr := dropContainers(containers); err == nil {
			err = dropErr
		}
	}()
	nets := bridgeNetworks(j.Sides, 3+index, "")
	for _, n := range nets {
		if err := n.fill(level.Addresses); err != nil {
			return compared{}, err
		}
	}
	for round := range 1 + level.Rounds {
		for _, i := range turns(round) {
			took, err := nets[i].allocate(ctx, container{ID: fmt.Sprintf("alloc%d-%d", index, round), Netns: containers[0].Netns})
			if err != nil {
				return compared{}, err
			}
			if round > 0 {
				t[i] = append(t[i], took)
			}
		}
	}
	for _, n := range nets {
		if err := os.RemoveAll(n.leaseDir()); err != nil {
			return compared{}, fmt.Errorf("remove leases: %w", err)
		}
	}
	return t.compared(), nil
}

// allocate times the allocation of an address and releases it.
func (n network) allocate(ctx context.Context, owner container) (time.Duration, error) {
	conf, err := n.ipamConf()
	if err != nil {
		return 0, err
	}
	c := call{Plugin: "host-local", Verb: "ADD", Container: owner, Conf: conf}
	added, err := n.Side.do(ctx, c)
	if err != nil {
		return 0, err
	}
	if _, err := added.address(); err != nil {
		return 0, err
	}
	c.Verb = "DEL"
	_, err = n.Side.do(ctx, c)
	return added.Took, err
}

// fill writes a host-local data directory with this number of leases: a file per address with container ID and interface. The free
// addresses are spread evenly, as on a node that has run for a while.
func (n network) fill(addresses int) error {
	dir := filepath.Join(n.leaseDir(), n.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make lease directory: %w", err)
	}
	if addresses == 0 {
		return nil
	}
	prefix, err := netip.ParsePrefix(n.Subnet)
	if err != nil {
		return fmt.Errorf("parse subnet: %w", err)
	}
	addr := prefix.Addr().Next().Next() // the first is the gateway
	for i := range poolSize {
		if taken(i, addresses) {
			lease := fmt.Sprintf("%s-%d\r\neth0", strings.Repeat("0", 57), i)
			if err := os.WriteFile(filepath.Join(dir, addr.String()), []byte(lease), 0o600); err != nil {
				return fmt.Errorf("write lease: %w", err)
			}
		}
		addr = addr.Next()
	}
	return nil
}

// taken returns addresses that are in use, spread evenly over the pool.
func taken(i, addresses int) bool {
	return (i+1)*addresses/poolSize != i*addresses/poolSize
}
