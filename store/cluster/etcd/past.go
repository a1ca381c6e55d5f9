package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// past distinguishes an etcd from one that was restored from a backup and has gone on
// since. The restored one has the same identity, and may reach the same revision
// numbers.
type past struct {
	// event is the revision of the last known change to a record.
	event int64
	// last is the record of that change. It has no key if the record was removed.
	last keyValue
}

// wrote notes that a record was written.
func (p *past) wrote(kv keyValue) {
	p.event = max(p.event, kv.ModRevision)
	if kv.ModRevision >= p.last.ModRevision {
		p.last = kv
	}
}

// removed notes that a record was removed.
func (p *past) removed(kv keyValue) {
	p.event = max(p.event, kv.ModRevision)
	if bytes.Equal(p.last.Key, kv.Key) {
		p.last.Key = nil
	}
}

// near is the number of revisions that are cheap to read again.
const near = 1000

// from returns the revision with which a stream begins. A stream that continues
// begins after the last known change, although the view is complete up to v.at: a
// restored etcd has its other changes there. If other programs write much more than
// nodes do, that range is too long, and the stream begins after v.at.
func (v *view) from() int64 {
	if !v.told && v.at-v.past.event <= near {
		return v.past.event + 1
	}
	return v.at + 1
}

// remembered checks that etcd still has the known past: as of v.at the same number of
// records, and the last changed one with the same value. errCompacted means that the
// past differs, or is not kept any more.
func (v *view) remembered(ctx context.Context) error {
	records, last := v.r.subnets(), v.past.last
	all, err := v.asOf(ctx, rangeRequest{Key: []byte(records), RangeEnd: end(records), CountOnly: true})
	if err != nil {
		return err
	}
	if all.Count != int64(v.records()) {
		return errCompacted
	}
	if last.Key == nil {
		return nil
	}
	one, err := v.asOf(ctx, rangeRequest{Key: last.Key})
	if err != nil {
		return err
	}
	if len(one.KVs) != 1 || one.KVs[0].ModRevision != last.ModRevision || one.KVs[0].Lease != last.Lease || !bytes.Equal(one.KVs[0].Value, last.Value) {
		return errCompacted
	}
	return nil
}

// asOf reads as of the last complete revision, v.at.
func (v *view) asOf(ctx context.Context, ask rangeRequest) (got rangeResponse, err error) {
	ask.Revision = v.at
	err = v.r.c.call(ctx, "/v3/kv/range", ask, &got)
	var f *failure
	if errors.As(err, &f) && f.code() == codeOutOfRange {
		return got, errCompacted
	}
	if err != nil {
		return got, fmt.Errorf("compare with what etcd said before: %w", err)
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
