package netops

import (
	"fmt"
	"strings"
)

// namedPlace is the prefix of the Place of a named namespace.
const namedPlace = "netns/"

// Named returns the Place of the namespace with a name below NamespaceDir. If
// that namespace is absent, Plan treats it as empty, Verify reports a
// difference, and deletes skip it because its objects were deleted with it.
func Named(name string) Place { return Place(namedPlace + name) }

// name returns the name of a named namespace.
func (p Place) name() (string, bool) {
	if p == Host || p == Container {
		return "", false
	}
	return strings.CutPrefix(string(p), namedPlace)
}

// place appends p unless it is Host.
func (w *words) place(p Place) {
	if name, ok := p.name(); ok {
		*w = append(*w, "netns", name)
		return
	}
	w.flag(p == Container, "netns container")
}

func checkPlace(p Place) error {
	name, named := p.name()
	switch {
	case p == Host || p == Container:
		return nil
	case named:
		return checkNetnsName(name)
	}
	return fmt.Errorf("place %q: %w", p, ErrInvalid)
}

// maxNetnsName is the longest file name in bytes (NAME_MAX).
const maxNetnsName = 255

// checkNetnsName accepts a name that is valid for a file directly below
// NamespaceDir.
func checkNetnsName(name string) error {
	if name == "" || len(name) > maxNetnsName || name[0] == '.' || strings.ContainsAny(name, "/\x00\n") {
		return fmt.Errorf("namespace name %q: %w", name, ErrInvalid)
	}
	return nil
}
