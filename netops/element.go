package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Element is one element of a set or map in cnibox's nftables tables. The first element
// also makes the tables, chains, sets and rules.
type Element nft.Element

// Where returns Host: cnibox's tables are in the host's namespace.
func (e *Element) Where() Place { return Host }

// IsShared reports whether attachments share the element.
func (e *Element) IsShared() bool { return e.Shared }

// String formats the element like nft(8).
func (e *Element) String() string {
	text := "element " + e.Set + " { " + strings.Join(e.Key, " . ")
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	text += " }"
	if e.Standby {
		text += " on standby"
	}
	return text
}

// validate checks only that a set and a key are present. Encoding for the set's types
// checks the values.
func (e *Element) validate() error {
	if e.Set == "" || len(e.Key) == 0 {
		return fmt.Errorf("element without a set or key: %w", ErrInvalid)
	}
	return nil
}

func (e *Element) plan(ctx context.Context, s *session) ([]Change, error) {
	if e.Standby {
		return []Change{addition(e)}, nil
	}
	have, found, err := s.net.nft.Get(ctx, (*nft.Element)(e))
	if err != nil {
		return nil, err
	}
	switch {
	case !found:
		return []Change{addition(e)}, nil
	case !e.Shared && len(e.Value) == 0 && !slices.Equal(e.Key, have.Key):
		return nil, nil // a wider element contains this key, and the kernel refuses an element within another
	case !e.Shared:
		return nil, fmt.Errorf("%s %w, held by %q", e, ErrExists, have.Label)
	case !slices.Equal(e.Value, have.Value):
		return nil, fmt.Errorf("%s %w: it is %s, held by %q", e, ErrConflict, (*Element)(have), have.Label)
	}
	return nil, nil
}

func (e *Element) verify(ctx context.Context, s *session) ([]Difference, error) {
	if e.Standby {
		return nil, nil
	}
	set := e.Set
	have, found, err := s.net.nft.Get(ctx, (*nft.Element)(e))
	if err == nil && !found && e.OrSet != "" {
		set = e.OrSet
		have, found, err = s.net.nft.Get(ctx, &nft.Element{Set: set, Key: e.OrKey, Value: e.Value})
	}
	if err != nil || !found {
		return absentIf(err, e)
	}
	flushed, err := s.isFlushed(ctx, set)
	if err != nil {
		return nil, err
	}
	if flushed {
		return []Difference{{Object: e, Want: "a rule that uses it", Have: noRule}}, nil
	}
	d := differences{object: e}
	d.compare("value", strings.Join(e.Value, " . "), strings.Join(have.Value, " . "))
	return d.list, nil
}

// isFlushed reports whether another program deleted a set's rules: its elements have no effect.
func (s *session) isFlushed(ctx context.Context, set string) (bool, error) {
	if _, known := s.flushed[set]; !known {
		flushed, err := s.net.nft.Flushed(ctx, set)
		if err != nil {
			return false, nlconn.Explain(err, "read nftables chains")
		}
		if s.flushed == nil {
			s.flushed = flushed
		}
		maps.Copy(s.flushed, flushed)
	}
	return s.flushed[set], nil
}

func (e *Element) batchKey(v Verb) string { return "element " + string(v) }

// apply adds or deletes nftables elements in one transaction. It does not add those on standby.
func (e *Element) apply(ctx context.Context, run *applier, batch []Change) error {
	var all []*nft.Element
	for _, c := range batch {
		if e := c.Do.Object.(*Element); !e.Standby || c.Do.Verb != VerbAdd {
			all = append(all, (*nft.Element)(e))
		}
	}
	var err error
	if len(all) > 0 {
		err = run.elements(ctx, batch[0].Do.Verb, all...)
	}
	if err == nil {
		run.done = append(run.done, batch...)
	}
	return err
}

func (e *Element) undo(ctx context.Context, s *session, v Verb) error {
	return s.elements(ctx, v, (*nft.Element)(e))
}

func (s *session) elements(ctx context.Context, v Verb, all ...*nft.Element) error {
	if v == VerbDel {
		return s.net.nft.Del(ctx, all)
	}
	return s.net.nft.Add(ctx, all)
}

func (e *Element) undoPhase() undoPhase { return undoElements }

// undoGroup deletes elements in one transaction. With a probe each element has
// its own.
func (e *Element) undoGroup(ctx context.Context, s *session, steps []Step) error {
	var errs []error
	var all []*nft.Element
	for _, st := range steps {
		e := st.Object.(*Element)
		own, err := e.isOwn(ctx, s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !own:
		case s.net.probe == nil && st.Verb == VerbDel:
			all = append(all, (*nft.Element)(e))
		default:
			errs = append(errs, s.probed(st, func() error { return e.undo(ctx, s, st.Verb) }))
		}
	}
	if len(all) > 0 {
		errs = append(errs, s.elements(ctx, VerbDel, all...))
	}
	return errors.Join(errs...)
}

// isOwn reports whether the element with e's key is absent or has e's label.
// Another owner can use the key now.
func (e *Element) isOwn(ctx context.Context, s *session) (bool, error) {
	if e.Label == "" || e.Shared {
		return true, nil
	}
	have, found, err := s.net.nft.Get(ctx, (*nft.Element)(e))
	return err == nil && (!found || have.Label == e.Label), err
}
