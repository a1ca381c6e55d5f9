package attach

import (
	"context"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// Claim is a resource of the node, such as a host port, that one attachment has until
// its DEL (see store.Claim).
type Claim struct{ Kind, Name string }

// kinds lists the kinds of claims, each once.
func kinds(claims []Claim) []string {
	var list []string
	for _, c := range claims {
		if !slices.Contains(list, c.Kind) {
			list = append(list, c.Kind)
		}
	}
	return list
}

// claim takes the claims; the error names the attachment that has one.
func (a *work) claim(tx *store.Tx, claims []Claim) error {
	for _, c := range claims {
		if err := tx.Claim(c.Kind, c.Name, a.req.Key(), a.h.Now()); err != nil {
			return err
		}
	}
	return nil
}

// holderOr returns a TakenError if another attachment has one of the claims, else exists.
// A parallel ADD can take a claim after Observe looked: then the kernel's object exists
// already, and its label does not tell the container.
func (a *work) holderOr(ctx context.Context, claims []Claim, exists error) error {
	err := a.h.Store.View(ctx, func(tx *store.Tx) error {
		for _, c := range claims {
			held, err := tx.Holder(c.Kind, c.Name, a.req.Key())
			if err != nil {
				return err
			}
			if held != nil {
				return &store.TakenError{What: c.Kind + " " + c.Name, Owner: held.Owner}
			}
		}
		return nil
	})
	if err == nil {
		return exists
	}
	return err
}

// reapHolder removes the holder that err names if it is dead, and reports whether it
// did: another try may succeed then.
func (a *work) reapHolder(ctx context.Context, err error) (bool, error) {
	var taken *store.TakenError
	if !errors.As(err, &taken) || taken.Owner == a.req.Key() {
		return false, nil
	}
	return record.ReapOne(ctx, a.h, taken.Owner)
}
