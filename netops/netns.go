package netops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Netns is a network namespace with a name (see Named) that attachments share. It
// is made empty; shared objects in it are made after it, and go with it.
//
// Its inverse takes links away that bear its label, first, for a VLAN's number is
// taken until its link is gone, and then the name. It leaves all as it is while
// there is another link that is up or labelled: an attachment's whose record was
// lost, or a stranger's.
//
// Whoever makes or ends one has to see to it that nobody else does so meanwhile.
type Netns struct {
	Name string `json:"name"`
	// Alias is that of the shared links in it, and has a label.
	Alias string `json:"alias"`
}

// Where is the host, which has the name.
func (o *Netns) Where() Place { return Host }

// IsShared is true: it is for more than one attachment.
func (o *Netns) IsShared() bool { return true }

func (o *Netns) object() {}

// String is the namespace in the form of ip netns.
func (o *Netns) String() string { return "netns " + o.Name }

func (o *Netns) validate() error {
	errs := []error{checkNetnsName(o.Name), checkAlias(o.Alias)}
	if ownLabel(o.Alias) == "" {
		errs = append(errs, fmt.Errorf("alias %q of what is in namespace %q has no label: %w", o.Alias, o.Name, ErrInvalid))
	}
	return errors.Join(errs...)
}

func (o *Netns) plan(_ context.Context, s *session) ([]Change, error) {
	if !s.unknown(Named(o.Name)) {
		return nil, nil
	}
	return []Change{{Do: Step{VerbAdd, o}}}, nil
}

func (o *Netns) verify(_ context.Context, s *session) ([]Difference, error) {
	if !s.unknown(Named(o.Name)) {
		return nil, nil
	}
	return absentIf(nil, o)
}

// owns tells whether a link bears the label, or lost its maker before it was
// labelled (see Link.chosenIndex).
func (o *Netns) owns(l *rtnl.Link) bool {
	if l.Alias == "" {
		return l.Index == (&Link{Name: l.Name, Alias: o.Alias}).chosenIndex()
	}
	return isLabelled(l.Alias, o.Alias)
}

// makeNetns makes a named namespace, in the place of what a process that was
// killed left of one too.
func (a *applier) makeNetns(c Change) error {
	o := c.Do.Object.(*Netns)
	if a.unknown(Named(o.Name)) {
		if _, err := makeNamespace(o.Name, 0); err != nil {
			return describeStep(c.Do, err)
		}
	}
	a.done = append(a.done, c)
	return nil
}

// endNetns is the inverse.
func (u *undoer) endNetns(ctx context.Context, o *Netns) error {
	ns, err := u.net.named(o.Name)
	if err != nil { // a plain file can be left; of a mount the kernel removes none
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
		ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
		ifi.Index = int32(l.Index)
		err := c.One(ctx, nlconn.Message{Kind: unix.RTM_DELLINK, Data: []nl.NetlinkRequestData{ifi}})
		if err != nil && !nlconn.IsAbsent(err) {
			return err
		}
	}
	if err := u.net.forgetNamed(o.Name); err != nil {
		return err
	}
	return u.net.RemoveNamespace(o.Name)
}

// named is the namespace with a name. It is kept open for the calls to come, as
// long as the name is its own.
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

// closeNamed closes all of them.
func (n *Net) closeNamed() error {
	var errs []error
	for name := range n.byName {
		errs = append(errs, n.forgetNamed(name))
	}
	return errors.Join(errs...)
}
