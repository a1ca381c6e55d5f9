package attach

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// Claim is a thing of the node that only one attachment can have, and has until
// its DEL (see store.Claim).
type Claim struct{ Kind, Name string }

// claim takes what a wiring claims; the error names who has it.
func (a *addition) claim(tx *store.Tx, claims []Claim) error {
	for _, c := range claims {
		if err := tx.Claim(c.Kind, c.Name, a.req.Key(), a.h.Now()); err != nil {
			return err
		}
	}
	return nil
}

// freed tells whether the holder that err names was dead and is removed, so
// that another try may succeed.
func (a *addition) freed(ctx context.Context, err error) (bool, error) {
	var taken *store.TakenError
	if !errors.As(err, &taken) || taken.Owner == a.req.Key() {
		return false, nil
	}
	return node.ReapOne(ctx, a.h, taken.Owner)
}
