package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attachment"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// attachments are the pods of this node: those of the records, and those of ADD calls that have no record yet.
type attachments struct {
	host *roles.Host
	// arePods is true if the attachments are all pods that there are.
	arePods   bool
	recorded  map[string]*podRequest // by label
	announced map[string]announcement
	// changed is true if the table lacks a change.
	changed bool
}

// announcement is the pod of an ADD call.
type announcement struct {
	pod *podRequest
	at  time.Time
	// isOpen is true if no policy selected the pod. Its ADD adds no elements, so a later policy does.
	isOpen bool
}

// announcedTime is the time after which an ADD call that has recorded nothing is dead.
const announcedTime = 2 * time.Minute

func newAttachments(h *roles.Host, arePods bool) attachments {
	return attachments{host: h, arePods: arePods, recorded: map[string]*podRequest{}, announced: map[string]announcement{}}
}

// announce adds the pod of an ADD call. Its addresses belong to no earlier pod any more.
func (l *attachments) announce(p *podRequest) {
	reused := func(label string, o *podRequest) bool {
		return label == p.Label || slices.ContainsFunc(o.Addresses, func(a netip.Addr) bool { return slices.Contains(p.Addresses, a) })
	}
	maps.DeleteFunc(l.recorded, reused)
	maps.DeleteFunc(l.announced, func(label string, a announcement) bool { return reused(label, a.pod) })
	l.announced[p.Label] = announcement{pod: p, at: time.Now()}
	l.changed = true
}

// open lets a later policy apply to the pod of an ADD call before its record is read.
func (l *attachments) open(p *podRequest) {
	a := l.announced[p.Label]
	a.isOpen = true
	l.announced[p.Label], l.changed = a, true
}

// isWaiting reports whether the record of an ADD call was not read yet.
func (l *attachments) isWaiting() bool { return len(l.announced) > 0 }

// read reads the records.
func (l *attachments) read(ctx context.Context) error {
	recorded := map[string]*podRequest{}
	err := l.host.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		for i := range all {
			if p := podOf(&all[i]); p != nil {
				recorded[p.Label] = p
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read attachments: %w", err)
	}
	l.recorded, l.changed = recorded, true
	maps.DeleteFunc(l.announced, func(label string, a announcement) bool {
		return recorded[label] != nil || time.Since(a.at) > announcedTime
	})
	return nil
}

// podOf returns the pod of an attachment, or nil if policies do not apply to it. An attachment that was made before the
// agent enforced policies has no PodPolicy.
func podOf(a *store.Attachment) *podRequest {
	if a.IfName != enforce.Interface {
		return nil
	}
	for i := range a.Parts {
		var changes []struct {
			Undo struct {
				PodPolicy *podRequest `json:"podPolicy"`
			} `json:"undo"`
		}
		if json.Unmarshal(a.Parts[i].Changes, &changes) != nil {
			continue
		}
		for _, c := range changes {
			if c.Undo.PodPolicy != nil {
				return c.Undo.PodPolicy
			}
		}
	}
	p := &podRequest{Label: attachment.Label(a.Key), Namespace: "default", Name: a.ContainerID}
	if namespace, name, ok := strings.Cut(a.Pod, "/"); ok {
		p.Namespace, p.Name = namespace, name
	}
	for _, addr := range a.Addresses {
		p.Addresses = append(p.Addresses, addr.Addr())
	}
	return p
}

// all returns the pods of this node.
func (l *attachments) all() []*podRequest {
	all := slices.Collect(maps.Values(l.recorded))
	for _, a := range l.announced {
		all = append(all, a.pod)
	}
	return all
}

// bridges returns the bridges of recorded pods.
func (l *attachments) bridges() []string {
	names := map[string]bool{}
	for _, p := range l.recorded {
		if p.Bridge != "" {
			names[p.Bridge] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// putInto changes a table that lacks a change.
func (l *attachments) putInto(t *netpolicy.Table) {
	if !l.changed {
		return
	}
	l.changed = false
	var locals []netpolicy.Local
	known := map[string]bool{}
	for _, p := range l.all() {
		locals = append(locals, netpolicy.Local{
			Label: p.Label, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Addresses: p.Addresses, Port: p.Port, Bridge: p.Bridge,
			Pending: l.recorded[p.Label] == nil && !l.announced[p.Label].isOpen,
		})
		if l.arePods {
			pod := &netpolicy.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Addresses: p.Addresses}
			known[pod.Key()] = true
			t.PutPod(pod)
		}
	}
	t.SetLocal(locals)
	if l.arePods {
		for _, p := range t.Pods() {
			if !known[p.Key()] {
				t.RemovePod(p.Namespace, p.Name)
			}
		}
	}
}
