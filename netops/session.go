package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// linkRef names a link in one of the namespaces.
type linkRef struct {
	in   Place
	name string
}

// session is what one call of a verb knows: the container, the links that its
// plan makes, and the indexes learnt so far.
type session struct {
	net *Net
	// container may be nil: then it is planned as if it were empty, read as
	// an error, and left alone by deletes.
	container *Namespace
	// made holds the links that the plan makes; nothing is on them yet.
	made map[linkRef]bool
	// moved holds the links that the plan moves, by their new place and name.
	// They count as made too: addresses and settings stay behind.
	moved map[linkRef]*rtnl.Link
	// lasting holds those that are shared: what an attachment has on them does not go
	// with them.
	lasting map[linkRef]bool
	// leaving holds the routes that the plan deletes: in their place there may
	// be others.
	leaving map[leaving]bool
	// index caches links' indexes by name, and acceptRA that setting of theirs.
	index    map[linkRef]int
	acceptRA map[linkRef]int32
}

func (n *Net) session(container *Namespace) *session {
	return &session{net: n, container: container, made: map[linkRef]bool{}, lasting: map[linkRef]bool{}, index: map[linkRef]int{}}
}

// hostIndexes are the indexes of the host's links that were read.
func (s *session) hostIndexes() map[linkRef]int {
	maps.DeleteFunc(s.index, func(ref linkRef, _ int) bool { return ref.in != Host })
	return s.index
}

// namespace is the one that p stands for.
func (s *session) namespace(p Place) (*Namespace, error) {
	switch {
	case p == Host:
		return s.net.host, nil
	case p == Container && s.container != nil:
		return s.container, nil
	case p == Container:
		return nil, fmt.Errorf("container: %w: none is given", ErrNoNetns)
	}
	if name, ok := p.name(); ok {
		return s.net.named(name)
	}
	return nil, fmt.Errorf("place %q: %w", p, ErrInvalid)
}

// unknown tells whether p is a container or named namespace that is not there:
// planned as empty.
func (s *session) unknown(p Place) bool {
	if p == Host {
		return false
	}
	if name, ok := p.name(); ok {
		_, err := s.net.named(name)
		return err != nil
	}
	return p == Container && s.container == nil
}

// isNew tells whether nothing can be on the link yet, so that reading is needless.
func (s *session) isNew(p Place, link string) bool {
	return s.unknown(p) || s.made[linkRef{p, link}]
}

func (s *session) conn(p Place) (*rtnl.Conn, error) {
	ns, err := s.namespace(p)
	if err != nil {
		return nil, err
	}
	return ns.socket()
}

// link reads a link; the error wraps ErrNotExist if there is none of that name.
func (s *session) link(ctx context.Context, p Place, name string) (*rtnl.Link, error) {
	l, err := s.findLink(ctx, p, name)
	if l == nil && err == nil {
		err = rtnl.NoLink(name)
	}
	return l, err
}

// findLink is link, with nil for one that is absent.
func (s *session) findLink(ctx context.Context, p Place, name string) (*rtnl.Link, error) {
	c, err := s.conn(p)
	if err != nil {
		return nil, err
	}
	l, err := c.FindLink(ctx, name)
	if l != nil {
		s.learn(linkRef{p, name}, l)
	}
	return l, err
}

// learn keeps what else is asked of a link that was read.
func (s *session) learn(ref linkRef, l *rtnl.Link) {
	s.index[ref] = l.Index
	delete(s.acceptRA, ref)
	if l.HasAcceptRA {
		if s.acceptRA == nil {
			s.acceptRA = map[linkRef]int32{}
		}
		s.acceptRA[ref] = l.AcceptRA
	}
}

// indexOf is a link's index, read once in a call.
func (s *session) indexOf(ctx context.Context, p Place, name string) (int, error) {
	if i, ok := s.index[linkRef{p, name}]; ok {
		return i, nil
	}
	l, err := s.link(ctx, p, name)
	if err != nil {
		return 0, err
	}
	return l.Index, nil
}

// linkName is the name of the link with an index, "" if there is none.
func (s *session) linkName(ctx context.Context, p Place, index int) (string, error) {
	if index == 0 {
		return "", nil
	}
	for ref, i := range s.index {
		if i == index && ref.in == p {
			return ref.name, nil
		}
	}
	c, err := s.conn(p)
	if err != nil {
		return "", err
	}
	l, err := c.LinkByIndex(ctx, index)
	if errors.Is(err, ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	s.index[linkRef{p, l.Name}] = index
	return l.Name, nil
}
