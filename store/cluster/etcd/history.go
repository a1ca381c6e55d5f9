package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// history identifies the history of an etcd. An etcd that was restored from a backup has the same
// cluster ID, and may reach the same revisions with other changes.
type history struct {
	// event is the revision of the last known change to a key.
	event int64
	// last is the key of that change, and empty if it was removed.
	last keyValue
}

// wrote notes that a key was written.
func (h *history) wrote(kv keyValue) {
	h.event = max(h.event, kv.ModRevision)
	if kv.ModRevision >= h.last.ModRevision {
		h.last = kv
	}
}

// removed notes that a key was removed.
func (h *history) removed(kv keyValue) {
	h.event = max(h.event, kv.ModRevision)
	if bytes.Equal(h.last.Key, kv.Key) {
		h.last.Key = nil
	}
}

// near is the number of revisions that are cheap to read again.
const near = 1000

// from returns the revision with which a stream begins. A stream that continues begins after the last
// known change, although the watch is complete up to w.at, because a restored etcd may have different
// changes there. If that range is too long, because other programs write much, the stream begins after
// w.at.
func (w *watch) from() int64 {
	if !w.reported && w.at-w.history.event <= near {
		return w.history.event + 1
	}
	return w.at + 1
}

// checkHistory checks that etcd has the known history: at revision w.at the same number of keys, and
// the last changed one with the same value. errLost means that the history differs, errCompacted that
// etcd may have compacted it.
func (w *watch) checkHistory(ctx context.Context) error {
	last := w.history.last
	if w.history.event > w.at {
		return errCompacted // a part of a revision is known
	}
	all, err := w.asOf(ctx, rangeRequest{Key: []byte(w.prefix), RangeEnd: end(w.prefix), CountOnly: true})
	if err != nil {
		return err
	}
	if all.Count != int64(len(w.names)) {
		return errLost
	}
	if last.Key == nil {
		return nil
	}
	one, err := w.asOf(ctx, rangeRequest{Key: last.Key})
	if err != nil {
		return err
	}
	if len(one.KVs) != 1 || one.KVs[0].ModRevision != last.ModRevision || one.KVs[0].Lease != last.Lease || !bytes.Equal(one.KVs[0].Value, last.Value) {
		return errLost
	}
	return nil
}

// asOf reads at the last complete revision, w.at.
func (w *watch) asOf(ctx context.Context, ask rangeRequest) (got rangeResponse, err error) {
	ask.Revision = w.at
	err = w.c.call(ctx, "/v3/kv/range", ask, &got)
	var f *failure
	if errors.As(err, &f) && f.code() == codeOutOfRange {
		return got, errCompacted
	}
	if err != nil {
		return got, fmt.Errorf("compare with the known history of etcd: %w", err)
	}
	return got, nil
}
