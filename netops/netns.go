package netops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

func (o *Netns) jsonKey() string { return "netns" }

// String formats the namespace as ip netns does.
func (o *Netns) String() string { return "netns " + o.Name }

func (o *Netns) validate() error {
	errs := []error{checkNetnsName(o.Name), checkAlias(o.Alias)}
	if ownLabel(o.Alias) == "" {
		errs = append(errs, fmt.Errorf("alias %q of what is in namespace %q has no label: %w", o.Alias, o.Name, ErrInvalid))
	}
	return errors.Join(errs...)
}

func (o *Netns) plan(_ context.Context, s *session) ([]Change, error) {
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
	if err != nil { // os.Remove deletes a leftover plain file; the kernel refuses it for a mount
		err := os.Remove(filepath.Join(NamespaceDir, o.Name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
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
		if err := c.One(ctx, linkMessage(unix.RTM_DELLINK, l.Index)); err != nil && !nlconn.IsAbsent(err) {
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
	if have != nil && have.dev == ns.dev && have.inode == ns.inode {
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
