package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// past is what tells an etcd from one that was put back to a copy and has gone on
// since: that has the same identity, and may have the same numbers.
type past struct {
	// event is the revision of the last change to the records that is known.
	event int64
	// last is the record that was written last; it has no key once it was removed.
	last keyValue
}

// wrote takes a record that was written.
func (p *past) wrote(kv keyValue) {
	if p.event = max(p.event, kv.ModRevision); kv.ModRevision >= p.last.ModRevision {
		p.last = kv
	}
}

// removed takes a record that was removed.
func (p *past) removed(kv keyValue) {
	if p.event = max(p.event, kv.ModRevision); bytes.Equal(p.last.Key, kv.Key) {
		p.last.Key = nil
	}
}

// near is how many revisions are few to look through.
const near = 1000

// from is the revision that a stream begins with. One that goes on begins after the
// last change that is known, though nothing was changed up to v.at: another past has
// its changes there. Where others write much more than nodes do, that would be too
// much to look through.
func (v *view) from() int64 {
	if !v.told && v.at-v.past.event <= near {
		return v.past.event + 1
	}
	return v.at + 1
}

// remembered makes sure that etcd has the past that is known: as of v.at as many
// records, and the last one as it was. errCompacted means that it has not, or keeps
// it no longer.
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

// asOf asks for what was there at the revision that is known whole.
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

// records is how many of them the table knows.
func (v *view) records() int {
	n := v.table.Len()
	if v.faultyConfig {
		n--
	}
	return n
}
