package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// noticesFile has the licences of what is linked into the program. It is written into the sources, beside LICENSE.
const noticesFile = "THIRD-PARTY-NOTICES"

// licences begin the names of the files in a module's root that must go with it.
var licences = []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}

// notices writes the licences and notices of Go's standard library and of each module that an architecture's program has.
func (r *release) notices(ctx context.Context) error {
	goroot, err := run(ctx, r.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	dirs := map[string]string{"Go's standard library": strings.TrimSpace(goroot)}
	for _, arch := range r.architectures {
		info, err := buildinfo.ReadFile(r.binary(arch))
		if err != nil {
			return err
		}
		for _, m := range info.Deps {
			dir, err := run(ctx, r.src, nil, "go", "list", "-m", "-f", "{{.Dir}}", m.Path)
			if err != nil {
				return err
			}
			dirs[m.Path+" "+m.Version] = strings.TrimSpace(dir)
		}
	}
	var names []string
	for name := range dirs {
		names = append(names, name)
	}
	slices.Sort(names)
	text := []byte("The program cnibox contains Go's standard library and the modules below, each under the terms that follow its name.\n")
	for _, name := range names {
		files, err := os.ReadDir(dirs[name])
		if err != nil {
			return err
		}
		found := false
		for _, f := range files {
			if f.IsDir() || !slices.ContainsFunc(licences, func(l string) bool { return strings.HasPrefix(strings.ToUpper(f.Name()), l) }) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dirs[name], f.Name()))
			if err != nil {
				return err
			}
			line := strings.Repeat("=", 80)
			text, found = fmt.Appendf(text, "\n%s\n%s: %s\n%s\n\n%s\n", line, name, f.Name(), line, content), true
		}
		if !found {
			return fmt.Errorf("%s has no licence in %s", name, dirs[name])
		}
	}
	return os.WriteFile(filepath.Join(r.src, noticesFile), text, 0o644)
}
