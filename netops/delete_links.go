package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// groupMark is set in the numbers of cnibox's temporary link groups. Other
// programs use small group numbers.
const groupMark = 1 << 30

// DeleteLinks deletes several links as one link group. Deleting a link waits
// 20 ms for the kernel. The kernel makes such waits one after the other, even
// for different threads: three concurrent deletes take 40 ms, and one group
// takes 20 ms.
//
// As in Undo, a link is deleted only if it is the link that was created. An
// absent link or container is not an error. The links of each namespace form one
// group. A single link in a namespace is not deleted: Undo does that.
func (n *Net) DeleteLinks(ctx context.Context, links []*Link, container *Namespace) error {
	s := n.session(container)
	var errs []error
	for _, p := range []Place{Host, Container} {
		if !s.isAbsentPlace(p) {
			errs = append(errs, s.deleteGroup(ctx, p, links))
		}
	}
	return errors.Join(errs...)
}

// deleteGroup deletes the links of one namespace.
func (s *session) deleteGroup(ctx context.Context, p Place, links []*Link) error {
	var mine []*Link
	var indexes []int
	for _, l := range links {
		if l.In != p {
			continue
		}
		have, err := s.findLink(ctx, p, l.Name)
		if err != nil {
			return err
		}
		if have != nil && l.isMade(have) {
			mine, indexes = append(mine, l), append(indexes, have.Index)
		}
	}
	if len(mine) < 2 {
		return nil
	}
	probe := s.net.probe
	for _, l := range mine {
		if st := (Step{VerbDel, l}); probe != nil {
			if err := probe.Before(st); err != nil {
				return describeStep(st, err)
			}
		}
	}
	if err := s.sendGroup(ctx, p, indexes); err != nil {
		return fmt.Errorf("delete %d links at once: %w", len(mine), err)
	}
	if probe != nil {
		for _, l := range mine {
			probe.After(Step{VerbDel, l})
		}
	}
	return nil
}

// sendGroup moves the links into a group and deletes the group. The group's
// number contains the index of the first link, so no other process uses it.
func (s *session) sendGroup(ctx context.Context, p Place, indexes []int) error {
	group := nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(groupMark|uint32(indexes[0])))
	var msgs []nlconn.Message
	for _, index := range indexes {
		msgs = append(msgs, linkMessage(unix.RTM_NEWLINK, index, group))
	}
	msgs = append(msgs, linkMessage(unix.RTM_DELLINK, 0, group))
	c, err := s.conn(p)
	if err != nil {
		return err
	}
	results, broken := c.Exchange(ctx, msgs)
	for _, err := range append(results, broken) {
		if err != nil && !nlconn.IsAbsent(err) {
			return err
		}
	}
	return nil
}
