package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// rounds bounds how often all tests run with the mutants that live. A mutant that fails a test early hides others from it.
const rounds = 3

// maxSuspects bounds the packages whose failed tests are run again for a mutant.
const maxSuspects = 12

// failed is a failed test of a package.
type failed struct{ pkg, test string }

// together plants all mutants at once and runs all tests of `make test`. Each failed test then runs with one mutant at a time: those with
// which it fails are found. The others go into the next round. It returns those that live.
func (o *options) together(ctx context.Context, tree tree, lived []mutant) (left []mutant, err error) {
	for round := 1; round <= rounds && len(lived) > 0; round++ {
		begin := time.Now()
		if err := o.plant(lived...); err != nil {
			return lived, err
		}
		suspects := o.failures(ctx, "./...")
		if ctx.Err() != nil {
			return lived, ctx.Err()
		}
		fmt.Printf("round %d with %d mutants: %d tests failed (%s)\n", round, len(lived), len(suspects), time.Since(begin).Round(time.Second))
		found := o.blame(ctx, tree, lived, suspects)
		if found == 0 {
			break
		}
		lived = slices.DeleteFunc(slices.Clone(lived), func(m mutant) bool { return m.by != "" })
	}
	return lived, ctx.Err()
}

// blame runs the failed tests with each mutant alone, those of the nearest packages first, and sets by of a mutant with which one fails.
func (o *options) blame(ctx context.Context, tree tree, lived []mutant, suspects []failed) (found int) {
	tests := map[string][]string{}
	var suites []string // they run the program
	for _, f := range suspects {
		if tests[f.pkg] == nil && strings.HasPrefix(f.pkg, tree.module+"/test/suites/") {
			suites = append(suites, f.pkg)
		}
		tests[f.pkg] = append(tests[f.pkg], f.test)
	}
	for i := range lived {
		m := &lived[i]
		if err := o.plant(*m); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			return found
		}
		tried := 0
		for _, pkg := range append(tree.importers(m.pkg.ImportPath), suites...) {
			if len(tests[pkg]) == 0 || tried == maxSuspects {
				continue
			}
			tried++
			if again := o.failures(ctx, pkg, "-failfast", "-run", "^("+strings.Join(tests[pkg], "|")+")$"); len(again) > 0 {
				m.by = strings.TrimPrefix(pkg, tree.module+"/") + " " + again[0].test
				found++
				break
			}
		}
		fmt.Printf("%s: %s: %s\n", m.at, m.change, cmp.Or(m.by, "not found in this round"))
	}
	return found
}

// failures runs tests and returns those that fail, without their parts.
func (o *options) failures(ctx context.Context, packages string, more ...string) (all []failed) {
	args := append([]string{"test", "-json", "-vet", "off", "-ldflags", "-s -w", "-short", "-p", "4", "-parallel", "8", "-timeout", "20m"}, more...)
	out, _ := o.command(ctx, append(args, packages)...).Output() //nolint:errcheck // it fails with the tests
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		var event struct{ Action, Package, Test string }
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.Action != "fail" || event.Test == "" || strings.Contains(event.Test, "/") {
			continue
		}
		all = append(all, failed{event.Package, event.Test})
	}
	return all
}
