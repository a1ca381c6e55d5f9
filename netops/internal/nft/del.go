package nft

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
)

// Del deletes the elements. An absent element, set or table is not an error. An
// element that only covers a wanted one stays. A failed deletion does not stop
// the other deletions.
func (c *Client) Del(ctx context.Context, els []*Element) error {
	var plain []*Entry
	prefixes := map[*Set][]*Entry{}
	for _, e := range els {
		n, err := EntryOf(c.Schema(), &Element{Set: e.Set, Key: e.Key, Value: e.Value})
		if err != nil {
			return err
		}
		if n.Set.isInterval() {
			prefixes[n.Set] = append(prefixes[n.Set], n)
		} else {
			plain = append(plain, n.Bare())
		}
	}
	sorting.Stable(plain, func(a, b *Entry) int { return compareSets(a.Set, b.Set) })
	isAbsent := func(err error) bool { return errors.Is(err, unix.ENOENT) }
	err := c.commitOrEach(ctx, unix.NFT_MSG_DELSETELEM, 0, plain, isAbsent, "delete")
	for _, of := range prefixes {
		err = errors.Join(err, c.delPrefixes(ctx, of))
	}
	return err
}
