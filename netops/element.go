package netops

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Element is one element of a set or map of our nftables tables. Base tables,
// chains, sets and rules come with the first element.
type Element nft.Element

// Where is the namespace that our tables are in: the host's.
func (e *Element) Where() Place { return Host }

// IsShared tells whether attachments share the element.
func (e *Element) IsShared() bool { return e.Shared }

func (e *Element) object() {}

// String is the element in the form of nft.
func (e *Element) String() string {
	text := "element " + e.Set + " { " + strings.Join(e.Key, " . ")
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	return text + " }"
}

// validate leaves the fields to the set's types.
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
		return nil, nil // a wider element says it, and the kernel takes none within
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
