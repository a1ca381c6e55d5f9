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
	// event is the revision of the last known change to a record.
	event int64
	// last is the record of that change. It has no key if the record was removed.
	last keyValue
}

// wrote notes that a record was written.
func (h *history) wrote(kv keyValue) {
	h.event = max(h.event, kv.ModRevision)
	if kv.ModRevision >= h.last.ModRevision {
		h.last = kv
	}
}

// removed notes that a record was removed.
func (h *history) removed(kv keyValue) {
	h.event = max(h.event, kv.ModRevision)
	if bytes.Equal(h.last.Key, kv.Key) {
		h.last.Key = nil
	}
}

// near is the number of revisions that are cheap to read again.
const near = 1000

// from returns the revision with which a stream begins. A stream that continues begins after the last
// known change, although the view is complete up to v.at, because a restored etcd may have different
// changes there. If that range is too long, because other programs write much, the stream begins after
// v.at.
func (v *view) from() int64 {
	if !v.reported && v.at-v.history.event <= near {
		return v.history.event + 1
	}
	return v.at + 1
}

// checkHistory checks that etcd has the known history: at revision v.at the same number of records, and
// the last changed one with the same value. errLost means that the history differs, errCompacted that
// etcd may have compacted it.
func (v *view) checkHistory(ctx context.Context) error {
	records, last := v.r.subnets(), v.history.last
	all, err := v.asOf(ctx, rangeRequest{Key: []byte(records), RangeEnd: end(records), CountOnly: true})
	if err != nil {
		return err
	}
	if all.Count != int64(v.records()) {
		return errLost
	}
	if last.Key == nil {
		return nil
	}
	one, err := v.asOf(ctx, rangeRequest{Key: last.Key})
	if err != nil {
		return err
	}
	if len(one.KVs) != 1 || one.KVs[0].ModRevision != last.ModRevision || one.KVs[0].Lease != last.Lease || !bytes.Equal(one.KVs[0].Value, last.Value) {
		return errLost
	}
	return nil
}

// asOf reads at the last complete revision, v.at.
func (v *view) asOf(ctx context.Context, ask rangeRequest) (got rangeResponse, err error) {
	ask.Revision = v.at
	err = v.r.c.call(ctx, "/v3/kv/range", ask, &got)
	var f *failure
	if errors.As(err, &f) && f.code() == codeOutOfRange {
		return got, errCompacted
	}
	if err != nil {
		return got, fmt.Errorf("compare with the known history of etcd: %w", err)
	}
	return got, nil
}

// records returns the number of records in the table.
func (v *view) records() int {
	n := v.table.Len()
	if v.faultyConfig {
		n--
	}
	return n
}
