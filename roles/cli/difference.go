package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// The values of difference.Fix.
const (
	fixRepair  = advice.Repair
	fixRestart = "restart the container"
	fixRemove  = "remove the container with its runtime"
	// fixRecord is for an interface without a record, whose container may run.
	fixRecord = "cnibox state repair --force"
	fixPath   = "name the plugins' directory with --cni-path"
)

// difference is one difference between an attachment and its specification.
type difference struct {
	store.Key
	Pod    string `json:"pod,omitempty"`
	Object string `json:"object"`
	Want   string `json:"want"`
	Have   string `json:"have"`
	// Fix is what to do about it, Changes what that changes in the kernel. Of several differences
	// of an object the first one has the changes.
	Fix     string          `json:"fix"`
	Changes []netops.Change `json:"changes,omitempty"`
	// of is the object, or nil.
	of netops.Object
}

// audited is one attachment of the node. A runtime's cache or a record describes it, or both.
type audited struct {
	store.Key
	pod    string
	cached *recovery.CacheEntry
	record *store.Attachment
	found  []difference
	// plan repairs what can be repaired. dead means that the attachment can be removed.
	plan netops.Plan
	dead bool
	// busy says why the attachment was not compared, or is "".
	busy string
}

// addDifferences adds differences, and the plan that repairs them. Repair changes only a
// namespace that a record of the container names: a path in a runtime's cache can be of
// another process now.
func (a *auditor) addDifferences(ctx context.Context, one *audited, diffs []netops.Difference, ns *netops.Namespace) {
	certain := false
	for _, r := range a.records {
		certain = certain || ns != nil && r.ContainerID == one.ContainerID && attachment.IsRecorded(ns, r.Netns)
	}
	if len(a.lost) > 0 { // the plan restores all rules at once
		diffs = slices.DeleteFunc(slices.Clone(diffs), func(d netops.Difference) bool { return d.IsWithoutRules() })
	}
	whole := one.cached != nil
	var repairs map[netops.Object]netops.Repair
	if certain {
		mendable := slices.DeleteFunc(slices.Clone(diffs), func(d netops.Difference) bool {
			if d.IsWithoutRules() {
				return true // its element is as it should be
			}
			_, link := d.Object.(*netops.Link)
			return link && !whole // a record does not have the whole link
		})
		one.plan, repairs = a.h.Net.PlanRepair(ctx, mendable, ns)
	}
	for _, d := range diffs {
		r, planned := repairs[d.Object]
		fix := fixRepair
		if !d.IsWithoutRules() && (!planned || r.Err != nil || a.after != nil) {
			fix = fixRestart
		}
		added := one.add(d.Object.String(), d.Want, d.Have, fix)
		added.of, added.Changes = d.Object, r.Changes
		if planned {
			repairs[d.Object] = netops.Repair{Err: r.Err}
		}
	}
}

func (one *audited) add(object, want, have, fix string) *difference {
	one.found = append(one.found, difference{Key: one.Key, Pod: one.pod, Object: object, Want: want, Have: have, Fix: fix})
	return &one.found[len(one.found)-1]
}

// addFormer adds the changes that remove what a new configuration does not want, unless a CHECK
// did not compare anything.
func (one *audited) addFormer(changes []netops.Change) {
	if slices.ContainsFunc(one.found, func(d difference) bool { return d.of == nil }) {
		return
	}
	for _, c := range changes {
		if c.Do.Verb == netops.VerbDel {
			one.addChange(c)
		}
	}
}

// addChange adds a planned change as a difference.
func (one *audited) addChange(c netops.Change) {
	want, have := "present", "absent"
	switch {
	case c.Do.Verb == netops.VerbDel:
		want, have = have, want
	case c.Do.Verb == netops.VerbSet && c.Undo != nil:
		want, have = c.Do.Object.String(), c.Undo.Object.String()
	}
	one.add(c.Do.Object.String(), want, have, fixRestart).Changes = []netops.Change{c}
}

// addErrors returns the differences in an error of CHECK. It adds the errors that have none
// as differences of their own: those of IPAM roles and of executed plugins.
func (one *audited) addErrors(err error) []netops.Difference {
	switch e := err.(type) { //nolint:errorlint // this walks the tree of errors
	case nil:
		return nil
	case *roles.CheckError:
		return e.Differences
	case interface{ Unwrap() []error }:
		var all []netops.Difference
		if errors.As(err, new(*roles.CheckError)) || len(roles.SplitJoined(err)) > 1 {
			for _, inner := range e.Unwrap() {
				all = append(all, one.addErrors(inner)...)
			}
			return all
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); errors.As(inner, new(*roles.CheckError)) {
			return one.addErrors(inner)
		}
	}
	fix := fixRestart
	if errors.Is(err, roles.ErrNoPlugin) {
		fix = fixPath
	}
	one.add("CHECK", "success", strings.ReplaceAll(err.Error(), "\n", "; "), fix)
	return nil
}

// differences returns the differences of all attachments. It is not nil.
func differences(all []*audited) []difference {
	out := []difference{}
	for _, one := range all {
		out = append(out, one.found...)
	}
	return out
}
