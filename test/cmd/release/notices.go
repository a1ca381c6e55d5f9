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

// termsOf returns the SPDX identifiers of the licences in a text.
func termsOf(text string) (all []string) {
	text = strings.Join(strings.Fields(text), " ")
	if strings.Contains(text, "Apache License Version 2.0") || strings.Contains(text, "apache.org/licenses/LICENSE-2.0") {
		all = append(all, "Apache-2.0")
	}
	if strings.Contains(text, "Permission is hereby granted, free of charge") {
		all = append(all, "MIT")
	}
	if strings.Contains(text, "Redistribution and use in source and binary forms") {
		all = append(all, map[bool]string{true: "BSD-3-Clause", false: "BSD-2-Clause"}[strings.Contains(text, "Neither the name")])
	}
	return all
}

// notices writes the licences and notices of Go's standard library and of each module that an architecture's program has.
func (r *release) notices(ctx context.Context) error {
	goroot, err := run(ctx, r.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	const library = "Go's standard library"
	dirs := map[string]string{library: strings.TrimSpace(goroot)}
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
	r.licence = map[string]string{}
	for _, name := range names {
		files, err := os.ReadDir(dirs[name])
		if err != nil {
			return err
		}
		var terms []string
		for _, f := range files {
			if f.IsDir() || !slices.ContainsFunc(licences, func(l string) bool { return strings.HasPrefix(strings.ToUpper(f.Name()), l) }) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dirs[name], f.Name()))
			if err != nil {
				return err
			}
			line := strings.Repeat("=", 80)
			text = fmt.Appendf(text, "\n%s\n%s: %s\n%s\n\n%s\n", line, name, f.Name(), line, content)
			terms = append(terms, termsOf(string(content))...)
		}
		if len(terms) == 0 {
			return fmt.Errorf("%s has no licence that is known here in %s", name, dirs[name])
		}
		slices.Sort(terms)
		r.licence[name] = strings.Join(slices.Compact(terms), " AND ")
	}
	r.licence["stdlib"] = r.licence[library]
	return os.WriteFile(filepath.Join(r.src, noticesFile), text, 0o644)
}
