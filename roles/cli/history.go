package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

// stampLayout is how times are shown, in local time.
const stampLayout = "2006-01-02 15:04:05"

// addressChange is a change in the output of `cnibox history --since`.
type addressChange struct {
	Time time.Time `json:"time"`
	// Change is "added" or "removed".
	Change string `json:"change"`
	*store.Holding
}

func (p *Process) historyCommand() *cli.Command {
	return &cli.Command{
		Name:      "history",
		Usage:     "show who had which address, and when",
		ArgsUsage: "[ADDRESS | POD | CONTAINER]",
		Description: `Lists the attachments of this boot, also those that were removed. POD is NAMESPACE/NAME, and CONTAINER is
a container's ID or the beginning of one. What a third-party plugin attached is in it if it called cnibox's
IPAM, as long as the trace has the call, or if a chained plugin of cnibox came after it. TIME is 15:04[:05]
of the last 24 hours, "2006-01-02 15:04[:05]", or RFC 3339; local unless it has a zone. The history is
bounded: of several thousand removed attachments it keeps the last.

examples:
  cnibox history 10.2.3.4 --at 03:12      who had the address
  cnibox history --since 1h               what was added and removed
  cnibox history default/web --json`,
		Flags: append(tableFlags(),
			&cli.StringFlag{Name: "at", Usage: "only what existed at `TIME`"},
			&cli.StringFlag{Name: "since", Usage: "the changes since a time, or a `DURATION` such as 90m ago"},
		),
		Action: p.onNode(p.history),
	}
}

func (p *Process) history(c *cli.Context, h *roles.Host) error {
	if c.Args().Len() > 1 || c.IsSet("at") && c.IsSet("since") {
		return advice.Usagef("cnibox help history", "want at most one address, pod or container, and --at or --since")
	}
	var when time.Time
	for _, name := range []string{"at", "since"} {
		if c.IsSet(name) {
			var err error
			if when, err = parseTime(c.String(name), time.Now()); err != nil {
				return err
			}
		}
	}
	all, err := p.holdings(c.Context, h)
	if err != nil {
		return err
	}
	if name := c.Args().First(); name != "" {
		all = slices.DeleteFunc(all, func(one *store.Holding) bool { return !isOf(one, name) })
		p.warnNone("history", name, len(all))
	}
	if c.IsSet("since") {
		return p.writeChanges(changesSince(all, when), c.Bool("json"), p.style(c))
	}
	if c.IsSet("at") {
		all = slices.DeleteFunc(all, func(one *store.Holding) bool {
			return one.Since.After(when) || !one.Until.IsZero() && !one.Until.After(when)
		})
	}
	if c.Bool("json") {
		return writeJSON(p.Stdout, all)
	}
	t := &table{head: []string{"SINCE", "UNTIL", "ADDRESS", "CONTAINER", "IFNAME", "NETWORK"}}
	s := p.style(c)
	for _, one := range all {
		until := "-"
		if !one.Until.IsZero() {
			until = one.Until.Local().Format(stampLayout)
		}
		t.add(one.Since.Local().Format(stampLayout), until, joinPrefixes(one.Addresses), s.name(one.Pod, one.ContainerID), one.IfName, one.Network)
	}
	return t.write(p.Stdout, s)
}

// holdings returns the removed and the existing attachments, oldest first.
func (p *Process) holdings(ctx context.Context, h *roles.Host) ([]*store.Holding, error) {
	ended, damaged, err := h.Store.Ended()
	if err != nil {
		return nil, err
	}
	p.warnDamaged("history", damaged)
	all := append([]*store.Holding{}, ended...) // not nil
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		existing, err := tx.Attachments("")
		for i := range existing {
			if existing[i].WasAttached() {
				all = append(all, existing[i].Holding())
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	calls, _, err := h.Store.Traced() // cnibox trace reports damaged lines
	if err != nil {
		return nil, err
	}
	all = append(all, tracedHoldings(calls, all)...)
	sorting.Stable(all, func(a, b *store.Holding) int { return a.Since.Compare(b.Since) })
	return all, nil
}

// tracedHoldings returns what third-party plugins attached, as far as results of cnibox's IPAM, which they called, show it.
// Recorded attachments are left out: a chained plugin of cnibox also records the interface that it was given.
func tracedHoldings(calls []*store.TracedCall, recorded []*store.Holding) (all []*store.Holding) {
	// A meta plugin answers with the result of its first network, which has a record of its own: the network is not compared.
	isRecorded := map[store.Key]bool{}
	for _, h := range recorded {
		isRecorded[store.Key{ContainerID: h.ContainerID, IfName: h.IfName}] = true
	}
	current := map[store.Key]*store.Holding{}
	for _, c := range calls {
		key := c.Key()
		now := current[key]
		switch {
		case c.Code != 0:
		case c.Verb == string(roles.Del) && now != nil:
			now.Until = c.Time.Add(c.Took)
			delete(current, key)
		case c.Verb == string(roles.Add) && now == nil:
			one := &store.Holding{
				Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Pod: c.Pod, Addresses: resultAddresses(c.Result), Since: c.Time, Traced: true,
			}
			if len(one.Addresses) > 0 && !isRecorded[store.Key{ContainerID: c.ContainerID, IfName: c.IfName}] {
				current[key] = one
				all = append(all, one)
			}
		}
	}
	return all
}

// warnDamaged reports damaged lines of a file of the store.
func (p *Process) warnDamaged(verb string, lines int) {
	if lines > 0 {
		fmt.Fprintf(p.Stderr, "cnibox: %s: %d damaged lines are left out\n", verb, lines)
	}
}

// warnNone says that nothing is recorded of a name, which may be misspelt.
func (p *Process) warnNone(verb, name string, records int) {
	if records == 0 {
		fmt.Fprintf(p.Stderr, "cnibox: %s: nothing is recorded of %q; a pod is NAMESPACE/NAME\n", verb, name)
	}
}

// isOf reports whether a holding is of an address, a pod or a container.
func isOf(h *store.Holding, name string) bool {
	if a, err := netip.ParseAddr(name); err == nil {
		return slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.Unmap() })
	}
	return isContainer(h.Pod, h.ContainerID, name)
}

// isContainer reports whether a name is that of a pod, or begins the ID of a container.
func isContainer(pod, id, name string) bool {
	return name == pod || name == id || len(name) >= shortIDLeast && inventory.IsRandom(id) && strings.HasPrefix(id, name)
}

// changesSince returns when attachments were added and removed, oldest first.
func changesSince(all []*store.Holding, since time.Time) []*addressChange {
	changes := []*addressChange{} // not nil
	for _, h := range all {
		if !h.Since.Before(since) {
			changes = append(changes, &addressChange{h.Since, "added", h})
		}
		if !h.Until.Before(since) && !h.Until.IsZero() {
			changes = append(changes, &addressChange{h.Until, "removed", h})
		}
	}
	sorting.Stable(changes, func(a, b *addressChange) int {
		return cmp.Or(a.Time.Compare(b.Time), strings.Compare(b.Change, a.Change))
	})
	return changes
}

func (p *Process) writeChanges(changes []*addressChange, asJSON bool, s style) error {
	if asJSON {
		return writeJSON(p.Stdout, changes)
	}
	t := &table{head: []string{"TIME", "CHANGE", "ADDRESS", "CONTAINER", "IFNAME", "NETWORK"}}
	for _, c := range changes {
		t.add(c.Time.Local().Format(stampLayout), c.Change, joinPrefixes(c.Addresses), s.name(c.Pod, c.ContainerID), c.IfName, c.Network)
	}
	return t.write(p.Stdout, s)
}

// parseTime parses a time of the last 24 hours, a date with a time, or a duration before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", stampLayout} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		t, err := time.ParseInLocation(layout, s, now.Location())
		if err != nil {
			continue
		}
		t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
		if t.After(now) {
			t = t.AddDate(0, 0, -1)
		}
		return t, nil
	}
	return time.Time{}, advice.Usagef("cnibox help history", "%q is neither a time nor a duration", s)
}
