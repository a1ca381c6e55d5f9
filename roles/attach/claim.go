package attach

import (
	"context"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// Claim names a resource of the node, for example a host port, that one attachment has
// until DEL (see store.Claim).
type Claim struct{ Kind, Name string }

// kinds returns the kinds of claims without duplicates.
func kinds(claims []Claim) []string {
	var list []string
	for _, c := range claims {
		if !slices.Contains(list, c.Kind) {
			list = append(list, c.Kind)
		}
	}
	return list
}

// claim takes the claims. If another attachment has one, the error names it.
func (a *work) claim(tx *store.Tx, claims []Claim) error {
	for _, c := range claims {
		if err := tx.Claim(c.Kind, c.Name, a.req.Key(), a.h.Now()); err != nil {
			return err
		}
	}
	return nil
}

// reapHolder removes the holder that err names if the holder is dead. It reports whether
// it removed the holder, so that the caller tries again.
func (a *work) reapHolder(ctx context.Context, err error) (bool, error) {
	var taken *store.TakenError
	if !errors.As(err, &taken) || taken.Owner == a.req.Key() {
		return false, nil
	}
	return record.ReapOne(ctx, a.h, taken.Owner)
}
