package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

func (l *Link) made() []linkRef {
	switch {
	case l.Kind == "":
		return nil
	case l.Peer != nil:
		return []linkRef{l.ref(), {l.Peer.In, l.Peer.Name}}
	}
	return []linkRef{l.ref()}
}

func (l *Link) configuration() *Link {
	return &Link{In: l.In, Name: l.Name, MAC: l.MAC, MTU: l.MTU, Up: l.Up, Alias: l.Alias, Master: l.Master, Promisc: l.Promisc, AllMulti: l.AllMulti, TxQLen: l.TxQLen, Port: l.Port}
}

// removal returns nil for a link that was only configured.
func (l *Link) removal() *Step {
	if l.Kind == "" {
		return nil
	}
	return &Step{VerbDel, l.inverse()}
}

// undo deletes the link or restores its attributes. Another program can have made the
// old attributes impossible, such as an MTU above the parent's or a MAC that another link
// has. That is not an error, because the link will be deleted soon.
func (l *Link) undo(ctx context.Context, s *session, v Verb) error {
	switch v {
	case VerbDel:
		return s.deleteLink(ctx, l)
	case VerbAdd:
		return fmt.Errorf("an inverse that makes a link: %w", ErrInvalid)
	}
	err := s.request(ctx, l, v)
	if l.Index != 0 && (isInvalid(err) || errors.Is(err, unix.EADDRINUSE)) {
		return nil
	}
	return err
}

// links returns none: enqueue knows what a link needs.
func (l *Link) links() []string { return nil }

// enqueue sends the collected requests before it makes or deletes a link. So
// checkNameFree reads the kernel directly before the link is made and labelled.
func (l *Link) enqueue(ctx context.Context, w *requestWriter, c Change) error {
	if c.Do.Verb != VerbSet || w.fresh[l.Name] || w.fresh[l.Master] || len(w.fresh) > 0 && l.Shared {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	switch c.Do.Verb {
	case VerbAdd:
		return l.enqueueNew(ctx, w, c)
	case VerbDel:
		if err := w.deleteLink(ctx, l); err != nil {
			return describeStep(c.Do, err)
		}
		w.done = append(w.done, c)
		return nil
	}
	err := w.enqueue(ctx, c)
	if err != nil || l.TxChecksum == "" {
		return err
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	on := uint32(0)
	if l.TxChecksum == onOff(true) {
		on = 1
	}
	_, err = w.ethtool(l, unix.ETHTOOL_STXCSUM, on)
	return err
}

// enqueueNew adds the requests that make the link, or makes it at once if one write
// cannot contain them.
func (l *Link) enqueueNew(ctx context.Context, w *requestWriter, c Change) error {
	if err := l.checkNameFree(ctx, w.session); err != nil {
		return err
	}
	if l.Kind == rtnl.KindTap {
		return l.addTap(ctx, w, c)
	}
	msgs, err := l.messages(ctx, w.session, VerbAdd)
	switch {
	case err != nil:
		return describeStep(c.Do, err)
	case l.crossesNamespaces():
		return l.addAcross(ctx, w, c, msgs)
	case l.Shared && len(msgs) > 1 && !l.choosesIndex():
		return l.addShared(ctx, w, c, msgs)
	}
	w.queue(c, msgs)
	w.fresh = map[string]bool{l.Name: true}
	if l.Peer != nil && l.Peer.In == l.In {
		w.fresh[l.Peer.Name] = true
	}
	return nil
}

// checkNameFree checks that an exclusive link's name is free. The label request after the
// create request can find the link by name, and would then relabel another
// program's link.
func (l *Link) checkNameFree(ctx context.Context, s *session) error {
	if l.Shared || l.choosesIndex() {
		return nil
	}
	have, err := s.findLink(ctx, l.In, l.Name)
	if err != nil || have == nil {
		return err
	}
	return fmt.Errorf("%s %w%s", l.title(), ErrExists, labelled(have.Alias))
}

// addShared creates a shared link with two ends. It labels the link only if this
// call created it, because another process can have created it first.
func (l *Link) addShared(ctx context.Context, w *requestWriter, c Change, msgs []nlconn.Message) error {
	c.Undo = nil
	w.queue(c, msgs[:1])
	made, err := w.flushMade(ctx)
	if err != nil || !made {
		return err
	}
	w.queue(Change{Do: Step{VerbSet, l}}, msgs[1:])
	return w.flush(ctx)
}

// addAcross creates a link with a request in its parent's namespace, and then
// labels it in the link's own namespace.
func (l *Link) addAcross(ctx context.Context, w *requestWriter, c Change, msgs []nlconn.Message) error {
	parent, err := w.conn(l.parentIn())
	if err != nil {
		return describeStep(c.Do, err)
	}
	results, broken := parent.Exchange(ctx, msgs[:1])
	if results[0] == nil || errors.Is(results[0], nlconn.ErrUnknown) {
		w.done = append(w.done, c)
	}
	if broken != nil {
		return describeStep(c.Do, broken)
	}
	if results[0] != nil {
		return w.handleReply(ctx, c.Do, results[0])
	}
	w.index[l.ref()] = l.chosenIndex()
	own, err := w.conn(l.In)
	for _, m := range msgs[1:] {
		if err == nil {
			err = own.One(ctx, m)
		}
	}
	return describeStep(c.Do, err)
}

// refusal explains a taken name, a busy parent, a changed master and an unknown kind. The
// kernel loads the module of a link kind by itself. If it does not know the kind, the
// module is not installed or must not be loaded; modprobe prints which.
func (l *Link) refusal(ctx context.Context, s *session, v Verb, err error) error {
	switch {
	case v == VerbAdd && errors.Is(err, unix.EEXIST):
		return l.takenError(ctx, s)
	case v == VerbAdd && l.hasParent() && errors.Is(err, unix.EBUSY):
		return l.parentBusyError()
	case l.Master != "" && errors.Is(err, unix.EINVAL):
		return l.masterChanged(ctx, s)
	case v == VerbAdd && l.Bridge != nil && l.Bridge.VLANFiltering && errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: it needs CONFIG_BRIDGE_VLAN_FILTERING", describeStep(Step{v, l}, err))
	case v == VerbAdd && l.Bridge == nil && errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: see what 'modprobe rtnl-link-%s' says", describeStep(Step{v, l}, err), l.Kind)
	}
	return nil
}

// takenError returns the error for a link that the kernel did not make because a name or a
// VLAN ID is in use. The error says which.
func (l *Link) takenError(ctx context.Context, s *session) error {
	have, err := s.findLink(ctx, l.In, l.Name)
	if err != nil {
		return err
	}
	if have == nil && l.Peer != nil {
		return peerExists(l.Peer)
	}
	if have == nil && l.Kind == rtnl.KindVLAN {
		return fmt.Errorf("VLAN %d on %q %w, in this or another namespace", l.VLANID, l.Parent, ErrExists)
	}
	alias := ""
	if have != nil {
		alias = have.Alias
	}
	return fmt.Errorf("%s %w%s", l.title(), ErrExists, labelled(alias))
}

// masterChanged returns the error for a link whose master was replaced or
// deleted since the plan. The kernel only reports an invalid index.
func (l *Link) masterChanged(ctx context.Context, s *session) error {
	index := s.index[linkRef{l.In, l.Master}]
	have, err := s.link(ctx, l.In, l.Master)
	switch {
	case err != nil:
		return fmt.Errorf("master of %s: %w", l.title(), err)
	case have.Index != index:
		return fmt.Errorf("master of %s: link %q was deleted and recreated meanwhile: %w", l.title(), l.Master, ErrBusy)
	}
	return nil
}

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
	var msgs []nlconn.Message
	for _, index := range indexes {
		msgs = append(msgs, rtnl.LinkMessage(unix.RTM_NEWLINK, index))
	}
	msgs = append(msgs, rtnl.LinkMessage(unix.RTM_DELLINK, 0))
	for i := range msgs {
		msgs[i].Uint32(unix.IFLA_GROUP, groupMark|uint32(indexes[0]))
	}
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
