// Command mutants plants faults in the product, one at a time, and reports which of them the tests of `make test` find. It changes no file
// of the repository: Go's flag -overlay compiles a changed copy. See CONTRIBUTING.md.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	seed  uint64
	count int
	// limit is for all tests of one mutant.
	limit time.Duration
	near  int
	only  string
	// all runs all tests with those that the near packages did not find, together.
	all  bool
	tags string
	// dir has the changed copies, and overlay says which files they replace.
	dir, overlay string
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the mutants")
	flag.IntVar(&o.count, "n", 30, "how many mutants")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "the longest time for all tests of one mutant")
	flag.IntVar(&o.near, "near", 0, "how many packages are tested for a mutant, the nearest first; 0 is all that import it")
	flag.BoolVar(&o.all, "all", false, "run all tests with the mutants that -near leaves, planted together, and then each failed test with one mutant at a time")
	flag.StringVar(&o.only, "only", "", "a regular expression for FILE:LINE of mutants; others are left out")
	flag.StringVar(&o.tags, "tags", "", "build tags")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.dir, o.overlay = dir, filepath.Join(dir, "overlay.json")
	tree, err := list(ctx, o.tags)
	if err != nil {
		return err
	}
	all, err := tree.mutants()
	if err != nil {
		return err
	}
	rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	planted, found := 0, 0
	var lived []mutant
	for _, m := range all {
		if planted == o.count || ctx.Err() != nil {
			break
		}
		if !only.MatchString(m.at) {
			continue
		}
		if err := o.plant(m); err != nil {
			return err
		}
		if _, err := o.command(ctx, "build", m.pkg.ImportPath).CombinedOutput(); err != nil {
			continue // it is no program, or equal to another form of itself
		}
		planted++
		begin := time.Now()
		by := o.search(ctx, tree, m)
		if ctx.Err() != nil {
			break
		}
		outcome := "lived"
		switch {
		case by != "":
			found++
			outcome = "found by " + by
		case time.Since(begin) >= o.limit:
			outcome = "not found in time"
		default:
			lived = append(lived, m)
		}
		fmt.Printf("%s: %s: %s (%s)\n", m.at, m.change, outcome, time.Since(begin).Round(time.Second))
	}
	if o.all {
		left, err := o.together(ctx, tree, lived)
		if err != nil {
			return err
		}
		found += len(lived) - len(left)
	}
	fmt.Printf("seed %d: %d of %d mutants were found\n", o.seed, found, planted)
	return ctx.Err()
}

// plant writes changed copies of the mutants' files.
func (o *options) plant(all ...mutant) error {
	replaced, last := map[string]string{}, map[string]int{}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b mutant) int { return b.from - a.from }) // the offsets of those before stay
	for _, m := range all {
		from, known := replaced[m.file]
		if !known {
			from, replaced[m.file] = m.file, filepath.Join(o.dir, fmt.Sprintf("%d.go", len(replaced)))
		} else if m.to > last[m.file] {
			continue // one is within another
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		last[m.file] = m.from
		changed := string(text[:m.from]) + m.text + string(text[m.to:])
		if err := os.WriteFile(replaced[m.file], []byte(changed), 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		return err
	}
	return os.WriteFile(o.overlay, overlay, 0o600)
}

// command is a command of Go with the mutant. GOFLAGS has the overlay also for programs that tests build.
func (o *options) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{args[0], "-tags", o.tags}, args[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -overlay="+o.overlay)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// failure finds the first failed test in the output of go test.
var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(?:panic|fatal error): (.*)`)

// search runs the tests of the mutant's package and of the packages that import it, the nearest first, until one fails. It returns the
// package and the test, or "".
func (o *options) search(ctx context.Context, tree tree, m mutant) string {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	packages := tree.importers(m.pkg.ImportPath)
	if o.near > 0 && o.near < len(packages) {
		packages = packages[:o.near]
	}
	for _, name := range packages {
		out, err := o.command(ctx, "test", "-vet", "off", "-ldflags", "-s -w", "-short", "-failfast", "-timeout", "10m", name).CombinedOutput()
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			continue
		}
		test := "its build or its time"
		if match := failure.FindStringSubmatch(string(out)); match != nil {
			test = match[1] + match[2]
		}
		return strings.TrimPrefix(name, tree.module+"/") + " " + test
	}
	return ""
}
