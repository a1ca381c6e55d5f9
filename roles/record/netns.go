package record

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// NetnsGone reports whether a recorded namespace is certainly gone; see
// [Census.NetnsGone]. It reads no links.
func NetnsGone(n store.Netns) bool {
	c := &Census{mount: MountNamespace()}
	return c.NetnsGone(n)
}

// AnyDead reports whether Reap would free an address of a network. It changes nothing
// and locks no attachment, so it may count one that another process works on.
func AnyDead(ctx context.Context, h *roles.Host, network string) (bool, error) {
	var atts []store.Attachment
	var leases []store.Lease
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		if atts, err = tx.Attachments(network); err != nil {
			return err
		}
		leases, err = Leases(tx, network)
		return err
	})
	if err != nil || len(leases) == 0 {
		return false, err
	}
	census, err := NewCensus(ctx, h)
	if err != nil {
		return false, err
	}
	dead := make(map[store.Key]bool, len(atts))
	for i := range atts {
		dead[atts[i].Key] = census.Dead(&atts[i])
	}
	for _, l := range leases {
		isDead, known := dead[l.Owner]
		if isDead || !known && !l.Imported && census.NetnsGone(l.Netns) {
			return true, nil
		}
	}
	return false, nil
}
