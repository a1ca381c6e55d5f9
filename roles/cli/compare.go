package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// compareTime is the maximum time for one attachment, whose CHECK can wait for another program.
const compareTime = 5 * time.Second

// auditBatch is the maximum number of attachments of a network after whose comparison what differs is compared again, and is certain then.
const auditBatch = 64

// fewDifferences is the number of differences that a terminal shows while others are looked for.
const fewDifferences = 5

// all compares all attachments, in the order of their keys.
func (a *auditor) all(ctx context.Context) ([]*audited, error) {
	var out []*audited
	covered := map[store.Key]bool{}
	for _, c := range recovery.ReadCaches(a.h, a.p.cacheDirs()) {
		one := &audited{Key: c.Key(), cached: c, record: a.records[c.Key()]}
		if !checkable(c) {
			one.cached = nil
		}
		if one.record == nil && one.cached == nil {
			continue
		}
		covered[one.Key] = true
		out = append(out, one)
	}
	// The CHECK of a meta role compares the networks to which it delegated.
	err := a.eachDelegate(ctx, func(owner, key store.Key) { covered[key] = covered[key] || covered[owner] })
	if err != nil {
		return nil, err
	}
	for key, r := range a.records {
		if !covered[key] {
			out = append(out, &audited{Key: key, record: r})
		}
	}
	if a.after != nil {
		out = slices.DeleteFunc(out, func(one *audited) bool { return one.Network != a.after.Name })
	}
	sorting.Func(out, func(x, y *audited) int {
		return cmp.Or(strings.Compare(x.Network, y.Network), strings.Compare(x.ContainerID, y.ContainerID), strings.Compare(x.IfName, y.IfName))
	})
	a.calls = runningCalls()
	n, err := a.compareAll(ctx, out)
	return out[:n], err
}

// compareAll compares attachments. After an error it returns how many it compared; the others keep what was found before.
func (a *auditor) compareAll(ctx context.Context, all []*audited) (compared int, err error) {
	progress := a.p.progress("attachments")
	defer progress(1, 1)
	for compared < len(all) && err == nil {
		batch := all[compared:min(compared+auditBatch, len(all))]
		if other := slices.IndexFunc(batch, func(one *audited) bool { return one.Network != batch[0].Network }); other > 0 {
			batch = batch[:other] // a CHECK that hangs does not hold back what other networks have
		}
		var n int
		n, err = a.compareSome(ctx, batch, func(i int) { progress(compared+i, len(all)) })
		batch, compared = batch[:n], compared+n
		if err != nil {
			break
		}
		var different []*audited
		for _, one := range batch {
			if len(one.found) > 0 && one.busy == "" {
				different = append(different, one)
			}
		}
		for len(different) > 0 && err == nil { // the state may have changed between two reads
			n, err = a.compareSome(ctx, different, func(int) {})
			different = different[n:]
		}
		if err == nil && a.stream != nil {
			err = a.stream(differences(batch))
		}
	}
	return compared, err
}

// compareSome compares attachments with one copy of the state, and reads what they share once. It ends early after one whose CHECK takes
// too long, so that what was found is shown, and returns how many it compared.
func (a *auditor) compareSome(ctx context.Context, all []*audited, progress func(done int)) (compared int, err error) {
	thaw, err := a.h.Store.Freeze(ctx)
	if err != nil {
		return 0, err
	}
	defer thaw()
	a.census, err = attachment.NewCensus(ctx, a.h)
	if err != nil {
		return 0, fmt.Errorf("list the host's interfaces: %w", err)
	}
	a.host = view.NewHost(ctx, a.h.Net)
	a.links, err = a.host.Links()
	if err != nil {
		return 0, err
	}
	a.stale, err = a.staleFlows()
	if err != nil {
		return 0, err
	}
	done, err := a.h.Net.Remember()
	if err != nil {
		return 0, err
	}
	defer done()
	for i, one := range all {
		progress(i)
		one.busy = a.late[one.Network]
		if one.busy != "" {
			continue
		}
		before := *one
		briefly, cancel := context.WithTimeout(ctx, compareTime)
		err := a.audit(briefly, one, nil)
		isLate := briefly.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil || err != nil && !isLate:
			*one = before
			return i, fmt.Errorf("check %s, after %d of %d attachments: %w", one.Describe(), i, len(all), cmp.Or(ctx.Err(), err))
		case isLate:
			*one = before
			one.busy = fmt.Sprintf("CHECK takes longer than %s", compareTime)
			a.late[one.Network] = "CHECK of another attachment of its network takes long"
			return i + 1, nil
		}
		if a.p.ErrIsTerminal && len(one.found) > 0 && a.shown < fewDifferences && len(before.found) == 0 {
			a.p.progress("")(1, 1)
			a.shown++
			d := one.found[0]
			fmt.Fprintf(a.p.Stderr, "found on %s: %s: want %s, have %s\n", printable(one.Describe()), printable(d.Object), printable(d.Want), printable(d.Have))
		}
	}
	return len(all), nil
}
