// Package feed keeps what the cloud says of this node's addresses current, for
// all processes of the node together: one asks, at most once an interval, and the
// others take what is there.
package feed

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// DefaultInterval is the least time between two questions to the cloud.
const DefaultInterval = 10 * time.Second

// Options say whom to ask, and how often.
type Options struct {
	// Provider is a name of metadata.Providers; empty: "auto".
	Provider string
	// URL replaces the provider's own base URL, File the provider "file"'s path.
	URL, File string
	// Interval is the least time between two questions; 0: DefaultInterval.
	Interval time.Duration
	// Patient waits for the cloud's answer as long as that takes, 25 s at most. Without it
	// a cloud that does not answer within 2 s is given up when something is known already.
	Patient bool
}

// Source is the name under which the source is recorded: "azure http://168.63.129.16".
func (o Options) Source() string { return "" }

// Known is what is recorded of a source, also of one before the last reboot; of an
// unknown one the error is store.ErrNotFound. It asks nobody.
func Known(ctx context.Context, h *roles.Host, source string) (*store.CloudSource, error) {
	return nil, nil
}

// Fresh is what is known of the source within a transaction, and whether that will
// do: not when the cloud ought to be asked first, by Current.
func (o Options) Fresh(tx *store.Tx, now time.Time) (*store.CloudSource, bool, error) {
	return nil, false, nil
}

// Current is what is known of a source, after asking the cloud if the interval has
// passed. Who finds somebody else asking takes what is known; only when nothing is
// known it waits, 25 s at most, and gets the other's error. With a known reply a
// failed question is recorded, and no error.
//
// Errors are roles.ErrTryAgain when the cloud cannot be asked now, roles.ErrExhausted when
// it shows no addresses, both with an error of package metadata in them, or of the store.
func Current(ctx context.Context, h *roles.Host, o Options) (*store.CloudSource, error) {
	return nil, nil
}
