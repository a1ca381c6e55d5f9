package netops

import (
	"fmt"
	"strings"
)

// namedPlace begins the Place of a namespace with a name.
const namedPlace = "netns/"

// Named is the place of the namespace with a name below NamespaceDir. While there
// is none it is planned as if it were empty, told as a difference, and left alone
// by deletes: all that was in it went with it.
func Named(name string) Place { return Place(namedPlace + name) }

// name is that of a named namespace.
func (p Place) name() (string, bool) {
	if p == Host || p == Container {
		return "", false
	}
	return strings.CutPrefix(string(p), namedPlace)
}

// place appends a namespace that is not the host's.
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

// maxNetnsName is the longest name of a file.
const maxNetnsName = 255

// checkNetnsName accepts what names a file right below NamespaceDir.
func checkNetnsName(name string) error {
	if name == "" || len(name) > maxNetnsName || name[0] == '.' || strings.ContainsAny(name, "/\x00\n") {
		return fmt.Errorf("namespace name %q: %w", name, ErrInvalid)
	}
	return nil
}
