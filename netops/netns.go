package netops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Netns is a named network namespace (see Named) that attachments share. It is
// created empty. Shared objects are created in it later and are deleted with it.
//
// The inverse first deletes the links that have the namespace's label, because a
// VLAN ID stays in use until its link is deleted. Then it deletes the name. It
// changes nothing while the namespace contains another link that is up or
// labelled. Such a link belongs to an attachment whose record was lost, or to
// another program.
//
// The caller must prevent concurrent creation or deletion of the same namespace.
type Netns struct {
	Name string `json:"name"`
	// Alias is the alias of the shared links in the namespace. It contains a
	// label.
	Alias string `json:"alias"`
}

// Where returns Host, because the name is on the host.
func (o *Netns) Where() Place { return Host }

// IsShared returns true: several attachments use the namespace.
func (o *Netns) IsShared() bool { return true }

// String formats the namespace as ip netns does.
func (o *Netns) String() string { return "netns " + o.Name }

func (o *Netns) validate() error {
	errs := []error{checkNetnsName(o.Name), checkAlias(o.Alias)}
	if ownLabel(o.Alias) == "" {
		errs = append(errs, fmt.Errorf("alias %q of what is in namespace %q has no label: %w", o.Alias, o.Name, ErrInvalid))
	}
	return errors.Join(errs...)
}

func (o *Netns) plan(_ context.Context, s *session) ([]Change, error) { //nolint:unparam // the error is that of kernelObject
	if !s.isAbsentPlace(Named(o.Name)) {
		return nil, nil
	}
	return []Change{{Do: Step{VerbAdd, o}}}, nil
}

func (o *Netns) verify(_ context.Context, s *session) ([]Difference, error) {
	if !s.isAbsentPlace(Named(o.Name)) {
		return nil, nil
	}
	return absentIf(nil, o)
}

// owns reports whether the link has the label. A link without an alias is also
// owned if it has the index that cnibox chooses for its name (see
// Link.chosenIndex): the process was killed before it labelled the link.
func (o *Netns) owns(l *rtnl.Link) bool {
	if l.Alias == "" {
		return l.Index == (&Link{Name: l.Name, Alias: o.Alias}).chosenIndex()
	}
	return isLabelled(l.Alias, o.Alias)
}

// apply creates the named namespace. It replaces the plain file that a killed
// process left.
func (o *Netns) apply(_ context.Context, run *applier, batch []Change) error {
	if run.isAbsentPlace(Named(o.Name)) {
		if _, err := makeNamespace(o.Name, 0); err != nil {
			return describeStep(batch[0].Do, err)
		}
	}
	run.done = append(run.done, batch...)
	return nil
}

// undo deletes the named namespace.
func (o *Netns) undo(ctx context.Context, s *session, _ Verb) error {
	ns, err := s.net.named(o.Name)
	if errors.Is(err, ErrNoNetns) { // os.Remove deletes a leftover plain file; the kernel refuses it for a mount
		err := os.Remove(filepath.Join(NamespaceDir, o.Name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	c, err := ns.socket()
	if err != nil {
		return err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return err
	}
	var own []*rtnl.Link
	for _, l := range links {
		switch {
		case l.Flags&unix.IFF_LOOPBACK != 0:
		case o.owns(l):
			own = append(own, l)
		case l.IsUp() || ownLabel(l.Alias) != "":
			return nil
		}
	}
	for _, l := range own {
		err := c.One(ctx, rtnl.LinkMessage(unix.RTM_DELLINK, l.Index))
		if err != nil && !nlconn.IsAbsent(err) {
			return err
		}
	}
	if err := s.net.forgetNamed(o.Name); err != nil {
		return err
	}
	return s.net.RemoveNamespace(o.Name)
}

// named returns the namespace with the name. It stays open for later calls until
// the name refers to another namespace.
func (n *Net) named(name string) (*Namespace, error) {
	ns, err := openNamespace(filepath.Join(NamespaceDir, name))
	if err != nil {
		return nil, fmt.Errorf("namespace %q: %w", name, err)
	}
	have := n.byName[name]
	if have != nil && have.fd.Equal(ns.fd) {
		return have, ns.Close()
	}
	if err := n.forgetNamed(name); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	if n.byName == nil {
		n.byName = map[string]*Namespace{}
	}
	n.byName[name] = ns
	return ns, nil
}

// forgetNamed closes a named namespace.
func (n *Net) forgetNamed(name string) error {
	ns := n.byName[name]
	if ns == nil {
		return nil
	}
	delete(n.byName, name)
	return ns.Close()
}

// closeNamed closes all named namespaces.
func (n *Net) closeNamed() error {
	var errs []error
	for name := range n.byName {
		errs = append(errs, n.forgetNamed(name))
	}
	return errors.Join(errs...)
}

// NamespaceDir is the directory in which `ip netns` mounts named namespaces.
const NamespaceDir = "/run/netns"

// MakeNamespace creates a network namespace that exists until RemoveNamespace,
// as `ip netns add` does. The error wraps fs.ErrExist if the name is taken.
func (n *Net) MakeNamespace(name string) (*Namespace, error) {
	path, err := makeNamespace(name, os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return n.OpenNamespace(path)
}

// makeNamespace creates a named namespace. It replaces a plain file with that
// name unless flags contain O_EXCL.
func makeNamespace(name string, flags int) (path string, err error) {
	path = filepath.Join(NamespaceDir, name)
	if err := shareNamespaceDir(); err != nil {
		return "", fmt.Errorf("make namespace %q: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|flags, 0o444)
	if err != nil {
		return "", fmt.Errorf("make namespace: %w", err)
	}
	if err := errors.Join(f.Close(), bindNewNamespace(path)); err != nil {
		return "", errors.Join(fmt.Errorf("make namespace %q: %w", name, err), os.Remove(path))
	}
	return path, nil
}

// RemoveNamespace deletes the name. The kernel deletes the namespace when no
// process uses it. An absent name is not an error.
func (n *Net) RemoveNamespace(name string) error {
	path := filepath.Join(NamespaceDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %q: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace: %w", err)
	}
	return nil
}

// shareNamespaceDir makes mounts and unmounts below the directory propagate to
// other mount namespaces. Without it a deleted namespace continues to exist in
// them.
func shareNamespaceDir() error {
	if err := os.MkdirAll(NamespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// The directory is not a mount point yet.
	if err := unix.Mount(NamespaceDir, NamespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// bindNewNamespace mounts a new namespace at path. One thread enters the new
// namespace, mounts it and returns.
func bindNewNamespace(path string) error {
	here, err := openNamespace(threadNamespace)
	if err != nil {
		return err
	}
	defer here.Close()
	return here.visit(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount(threadNamespace, path, "", unix.MS_BIND, "")
	})
}

// Run runs f on a thread in the namespace; a nil Namespace is that of the process. The sockets that f opens and the
// processes that it starts are in the namespace. Goroutines that f starts are
// not.
func (ns *Namespace) Run(f func() error) error { return ns.visit(f) }

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
