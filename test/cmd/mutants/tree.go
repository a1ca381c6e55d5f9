package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// tree is the repository's packages.
type tree struct {
	module, root string
	packages     []pkg
	// product are the import paths of the packages of the program.
	product map[string]bool
}

// pkg is what go list prints of a package.
type pkg struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
	Module                             *struct{ Path, Dir string }
}

// list reads the packages.
func list(ctx context.Context, tags string) (tree, error) {
	all, err := goList(ctx, "-tags", tags, "./...")
	if err != nil {
		return tree{}, err
	}
	deps, err := goList(ctx, "-tags", tags, "-deps", ".")
	if err != nil {
		return tree{}, err
	}
	t := tree{packages: all, product: map[string]bool{}, module: all[0].Module.Path, root: all[0].Module.Dir}
	for _, p := range deps {
		if p.Module != nil && p.Module.Path == t.module {
			t.product[p.ImportPath] = true
		}
	}
	return t, nil
}

func goList(ctx context.Context, args ...string) ([]pkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// mutants returns all mutants of the product, in the order of files and lines.
func (t tree) mutants() ([]mutant, error) {
	var all []mutant
	for _, p := range t.packages {
		if !t.product[p.ImportPath] {
			continue
		}
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			found, err := mutate(strings.TrimPrefix(file, t.root+"/"), text)
			if err != nil {
				return nil, err
			}
			for _, m := range found {
				m.file, m.pkg = file, p
				all = append(all, m)
			}
		}
	}
	return all, nil
}

// importers returns the packages with tests that import a package, directly or not, the nearest first and the package itself before them.
func (t tree) importers(path string) []string {
	near := map[string]bool{path: true}
	var out []string
	for level := []string{path}; len(level) > 0; {
		var next []string
		for _, p := range t.packages {
			if slices.Contains(level, p.ImportPath) && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
				out = append(out, p.ImportPath)
			}
			reaches := func(name string) bool { return slices.Contains(level, name) }
			byTest := slices.ContainsFunc(p.TestImports, reaches) || slices.ContainsFunc(p.XTestImports, reaches)
			if !near[p.ImportPath] && (byTest || slices.ContainsFunc(p.Imports, reaches)) {
				near[p.ImportPath] = true
				next = append(next, p.ImportPath)
			}
		}
		level = next
	}
	for _, suite := range []string{"/test/suites/process", "/test/suites/nights"} { // they build the program
		if !near[t.module+suite] {
			out = append(out, t.module+suite)
		}
	}
	return out
}
