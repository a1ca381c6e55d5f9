package netops

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Element is one element of a set or map in cnibox's nftables tables. The first element
// also makes the tables, chains, sets and rules.
type Element nft.Element

// Where returns Host: cnibox's tables are in the host's namespace.
func (e *Element) Where() Place { return Host }

// IsShared reports whether attachments share the element.
func (e *Element) IsShared() bool { return e.Shared }

func (e *Element) object() {}

// String formats the element like nft(8).
func (e *Element) String() string {
	text := "element " + e.Set + " { " + strings.Join(e.Key, " . ")
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	return text + " }"
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
	have, found, err := s.net.nft.Get(ctx, (*nft.Element)(e))
	if err != nil {
		return nil, err
	}
	switch {
	case !found && e.Shared:
		return []Change{{Do: Step{VerbAdd, e}}}, nil
	case !found:
		return []Change{{Do: Step{VerbAdd, e}, Undo: &Step{VerbDel, e}}}, nil
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
	have, found, err := s.net.nft.Get(ctx, (*nft.Element)(e))
	if err != nil || !found {
		return absentIf(err, e)
	}
	d := differences{object: e}
	d.compare("value", strings.Join(e.Value, " . "), strings.Join(have.Value, " . "))
	return d.list, nil
}
