package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// linkRef names a link in one of the namespaces.
type linkRef struct {
	in   Place
	name string
}

// session holds the data of one call of a verb: the container, the links that
// the plan creates, and the indexes that were read.
type session struct {
	net *Net
	// container can be nil. Plan then treats it as empty, reads fail, and
	// deletes skip it.
	container *Namespace
	// made holds the links that the plan creates. They have no addresses or
	// routes yet.
	made map[linkRef]bool
	// moved holds the links that the plan moves, by their new place and
	// name. They are in made too, because a move removes addresses and
	// settings.
	moved map[linkRef]*rtnl.Link
	// lasting holds the shared links. An attachment's objects on such a link
	// are not deleted with the link.
	lasting map[linkRef]bool
	// leaving holds the routes that the plan deletes. The plan can add other
	// routes in their place.
	leaving map[leaving]bool
	// index caches link indexes by name. acceptRA caches the accept_ra
	// setting.
	index    map[linkRef]int
	acceptRA map[linkRef]int32
	// flushed caches which sets' rules another program deleted.
	flushed map[string]bool
}

func (n *Net) session(container *Namespace) *session {
	return &session{net: n, container: container, made: map[linkRef]bool{}, lasting: map[linkRef]bool{}, index: map[linkRef]int{}}
}

// namespace returns the namespace of p.
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

// isAbsentPlace reports whether p is a container or named namespace that is absent.
// Plan treats it as empty.
func (s *session) isAbsentPlace(p Place) bool {
	if p == Host {
		return false
	}
	if name, ok := p.name(); ok {
		_, err := s.net.named(name)
		return errors.Is(err, ErrNoNetns) // after another error its users fail with that error
	}
	return p == Container && s.container == nil
}

// isNew reports whether the link has no objects yet, so that reading them is
// unnecessary.
func (s *session) isNew(p Place, link string) bool {
	return s.isAbsentPlace(p) || s.made[linkRef{p, link}]
}

func (s *session) conn(p Place) (*rtnl.Conn, error) {
	ns, err := s.namespace(p)
	if err != nil {
		return nil, err
	}
	return ns.socket()
}

// link reads a link. The error wraps ErrNotExist if the link is absent.
func (s *session) link(ctx context.Context, p Place, name string) (*rtnl.Link, error) {
	l, err := s.findLink(ctx, p, name)
	if l == nil && err == nil {
		err = rtnl.NoLink(name)
	}
	return l, err
}

// findLink is like link, but returns nil for an absent link.
func (s *session) findLink(ctx context.Context, p Place, name string) (*rtnl.Link, error) {
	c, err := s.conn(p)
	if err != nil {
		return nil, err
	}
	l, err := c.FindLink(ctx, name)
	if l != nil {
		s.cacheIndex(linkRef{p, name}, l)
	}
	return l, err
}

// cacheIndex stores the index and accept_ra of a link that was read.
func (s *session) cacheIndex(ref linkRef, l *rtnl.Link) {
	s.index[ref] = l.Index
	delete(s.acceptRA, ref)
	if l.HasAcceptRA {
		if s.acceptRA == nil {
			s.acceptRA = map[linkRef]int32{}
		}
		s.acceptRA[ref] = l.AcceptRA
	}
}

// indexOf returns a link's index. It is read once per session.
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

// linkConn returns a link's index and the connection to its namespace.
func (s *session) linkConn(ctx context.Context, p Place, name string) (int, *rtnl.Conn, error) {
	index, err := s.indexOf(ctx, p, name)
	if err != nil {
		return 0, nil, err
	}
	c, err := s.conn(p)
	return index, c, err
}

// linkName returns the name of the link with an index, or "" if the link is
// absent.
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
