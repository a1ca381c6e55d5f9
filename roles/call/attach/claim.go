package attach

import (
	"context"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// kinds returns the kinds of claims without duplicates, and those that they can become.
func kinds(claims []store.Resource) []string {
	var list []string
	add := func(kind string) {
		if !slices.Contains(list, kind) {
			list = append(list, kind)
		}
	}
	for _, c := range claims {
		add(c.Kind)
		if c.Kind == store.KindAwaited {
			add(store.KindPort)
		}
	}
	return list
}

// holderOr returns a TakenError if another attachment has one of the claims, else exists.
// A parallel ADD can take a claim after Observe looked: then the kernel's object exists
// already, and its label does not name the container.
func (a *work) holderOr(ctx context.Context, claims []store.Resource, exists error) error {
	err := a.h.Store.View(ctx, func(tx *store.Tx) error {
		for _, c := range claims {
			taken, err := tx.Holder(c, a.req.Key())
			if err != nil {
				return err
			}
			if taken != nil {
				return taken
			}
		}
		return nil
	})
	if err == nil {
		return exists
	}
	return err
}

// reapHolder removes the holder that err names if the holder is dead. It reports whether
// it removed the holder, so that the caller tries again.
func (a *work) reapHolder(ctx context.Context, err error) (bool, error) {
	var taken *store.TakenError
	if !errors.As(err, &taken) || taken.Owner == a.req.Key() {
		return false, nil
	}
	return attachment.ReapOne(ctx, a.h, taken.Owner)
}
