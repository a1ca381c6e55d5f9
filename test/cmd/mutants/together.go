package main

import (
	"bufio"
	"bytes"
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

// maxSuspects bounds the failed tests that are run again for each mutant.
const maxSuspects = 40

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
		found := o.blame(ctx, tree, lived, suspects[:min(len(suspects), maxSuspects)])
		if found == 0 {
			break
		}
		lived = slices.DeleteFunc(slices.Clone(lived), func(m mutant) bool { return m.by != "" })
	}
	return lived, ctx.Err()
}

// blame runs each failed test with each mutant alone that the test can reach, and sets by of those that fail it.
func (o *options) blame(ctx context.Context, tree tree, lived []mutant, suspects []failed) (found int) {
	for i := range lived {
		m := &lived[i]
		reached := tree.importers(m.pkg.ImportPath)
		if err := o.plant(*m); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			return found
		}
		for _, f := range suspects {
			if !slices.Contains(reached, f.pkg) && !strings.HasPrefix(f.pkg, tree.module+"/test/suites/") {
				continue // the suites run the program
			}
			if again := o.failures(ctx, f.pkg, "-run", "^"+f.test+"$"); slices.Contains(again, f) {
				m.by = strings.TrimPrefix(f.pkg, tree.module+"/") + " " + f.test
				found++
				fmt.Printf("%s: %s: found by %s\n", m.at, m.change, m.by)
				break
			}
		}
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
