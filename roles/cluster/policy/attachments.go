package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
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
	// ended has the times of DELs that have removed the link, by label. The record may be there for a moment.
	ended map[string]time.Time
	// found has the pods of the table that an ADD call asked the source for, by label, until the source sends them.
	found map[string]*netpolicy.Pod
	// derived has the recorded pods whose ADD did not ask for policies, and unfiltered those whose packets do not pass the node's
	// packet filter. Both are by label.
	derived    map[string]*podRequest
	unfiltered map[string]bool
	// macs has the MACs of bridges by name.
	macs map[string]string
	// named are the links of recorded pods.
	named *podLinks
	// networks are those of pods.
	networks []netip.Prefix
	// unknown is true if a pod's identity is not known.
	unknown bool
	// changed is true if the table lacks a change.
	changed bool
}

// announcement is the pod of an ADD call.
type announcement struct {
	pod *podRequest
	at  time.Time
	// byAgent is true if ADD has recorded the attachment and lets the agent add the elements.
	byAgent bool
}

// announcedTime is the time after which an ADD call that has recorded nothing is dead.
const announcedTime = 2 * time.Minute

// endTime bounds the time from the end of a link until that of its record.
const endTime = 2 * time.Second

func newAttachments(h *roles.Host, arePods bool) attachments {
	return attachments{
		host: h, arePods: arePods, recorded: map[string]*podRequest{}, announced: map[string]announcement{}, ended: map[string]time.Time{},
		found: map[string]*netpolicy.Pod{}, macs: map[string]string{}, named: new(podLinks),
	}
}

// announce adds the pod of an ADD call. Its addresses belong to no earlier pod any more.
func (l *attachments) announce(p *podRequest) {
	reused := func(label string, o *podRequest) bool {
		return label == p.Label || sharesAddress(p, o)
	}
	maps.DeleteFunc(l.recorded, reused)
	maps.DeleteFunc(l.announced, func(label string, a announcement) bool { return reused(label, a.pod) })
	l.announced[p.Label] = announcement{pod: p, at: time.Now()}
	delete(l.ended, p.Label)
	l.changed = true
}

// end removes the pod of a DEL call.
func (l *attachments) end(p *podRequest) {
	delete(l.recorded, p.Label)
	delete(l.announced, p.Label)
	l.ended[p.Label], l.changed = time.Now(), true
}

// put adds the pod of an ADD call that has recorded it and lets the agent add its elements.
func (l *attachments) put(p *podRequest) {
	l.announce(p)
	a := l.announced[p.Label]
	a.byAgent = true
	l.announced[p.Label] = a
}

// forget removes the pod of an ADD call that is refused.
func (l *attachments) forget(p *podRequest) {
	delete(l.announced, p.Label)
	l.changed = true
}

// isWaiting reports whether the record of an ADD call was not read yet.
func (l *attachments) isWaiting() bool { return len(l.announced) > 0 }

// read reads the records.
func (l *attachments) read(ctx context.Context) error {
	var all []store.Attachment
	err := l.host.Store.View(ctx, func(tx *store.Tx) (err error) {
		all, err = tx.Attachments("")
		return err
	})
	if err != nil {
		return fmt.Errorf("read attachments: %w", err)
	}
	created := map[string]time.Time{} // by label
	named, err := l.readLinks(ctx)
	if err != nil {
		return err
	}
	l.named = named
	recorded, derived := map[string]*podRequest{}, map[string]*podRequest{}
	l.unfiltered, l.unknown = map[string]bool{}, false
	maps.DeleteFunc(l.ended, func(_ string, at time.Time) bool { return time.Since(at) > endTime })
	delegations := sync.OnceValues(func() ([]store.Delegation, error) {
		return store.ReadKeep(ctx, l.host.Store, func(tx *store.KeepTx) ([]store.Delegation, error) { return tx.Delegations("") })
	})
	for i := range all {
		a := &all[i]
		if master, title := stackedBy(a); master != "" {
			named.stacked[master] = append(named.stacked[master], title)
		}
		p, label := enforce.Recorded(a), attachment.Label(a.Key)
		if !a.Created.After(l.ended[label]) {
			continue
		}
		if p == nil {
			if p = l.derived[label]; p == nil || !slices.Equal(p.Addresses, addressesOf(a)) {
				p, err = l.derive(ctx, a, delegations)
			}
			if err != nil {
				return err
			}
			derived[label] = p
			l.unknown = l.unknown || p.Name == "" && !p.Other
		}
		recorded[label], created[label] = named.at(label, p), a.Created
		if a.HostLink == "" || len(p.Addresses) == 0 {
			l.unfiltered[label] = true
		}
	}
	l.recorded, l.derived, l.changed = recorded, derived, true
	l.networks = l.podNetworks()
	maps.DeleteFunc(l.announced, func(label string, a announcement) bool {
		if a.byAgent || recorded[label] != nil || time.Since(a.at) > announcedTime {
			return true
		}
		for other, p := range recorded { // of a later ADD that did not ask
			if sharesAddress(p, a.pod) && created[other].After(a.at) {
				return true
			}
		}
		return false
	})
	return nil
}

// sharesAddress reports whether two pods have an address of one network.
func sharesAddress(p, o *podRequest) bool {
	return !p.Other && !o.Other && o.Network == p.Network && slices.ContainsFunc(o.Addresses, func(a netip.Addr) bool { return slices.Contains(p.Addresses, a) })
}

func addressesOf(a *store.Attachment) (all []netip.Addr) {
	for _, addr := range a.Addresses {
		all = append(all, addr.Addr())
	}
	return all
}

// derive returns the pod of an attachment that was made before the agent enforced policies, or whose record was lost and rebuilt. The
// runtime's cache has its identity. Without it the name is "", and the pod is denied everything unless the source knows its
// addresses. Which IPAM plugin chose its addresses is not known, so it can have others.
func (l *attachments) derive(ctx context.Context, a *store.Attachment, delegations func() ([]store.Delegation, error)) (*podRequest, error) {
	p := &podRequest{Label: attachment.Label(a.Key), Addresses: addressesOf(a), AnyAddress: true}
	l.findLink(ctx, a, p)
	var args roles.Args
	var runtime map[string]json.RawMessage
	var config []byte
	found := false
	if a.IfName == enforce.Interface {
		args, runtime, config, found = recovery.CachedArgs(l.host.Store.RunDir(), a.Key)
	} else {
		all, err := delegations()
		if err != nil && !errors.Is(err, store.ErrDamaged) {
			return nil, fmt.Errorf("read the networks of pods: %w", err)
		}
		of, text := delegateOf(all, a)
		if of == nil {
			p.Other = true
			return p, nil
		}
		p.Network, runtime, config = of.Name, of.Runtime, of.List
		args, err = roles.ParseArgs(text)
		found = err == nil
	}
	switch namespace, name, named := strings.Cut(a.Pod, "/"); {
	case found && enforce.Identify(p, args, a.ContainerID, runtime, recovery.PolicyLabels(config)) == nil:
	case named && !l.arePods:
		p.Namespace, p.Name = namespace, name
	default:
		p.Namespace, p.Name = "", ""
		l.host.Log.Warn("the pod of a container is not known, so network policies deny it everything: create the container again",
			"network", a.Network, "container", a.ContainerID)
	}
	return p, nil
}

// findLink sets what a pod tells of its interface to what the kernel and the record have.
func (l *attachments) findLink(ctx context.Context, a *store.Attachment, p *podRequest) {
	link, err := l.host.Net.Link(ctx, nil, a.HostLink)
	if err != nil || !link.IsPairEnd() {
		return
	}
	p.Port, p.MAC = link.Name, a.MAC
	if link.Master != "" {
		if master, err := l.host.Net.Link(ctx, nil, link.Master); err == nil && master.Kind == "bridge" {
			p.Bridge = master.Name
		}
	}
}

// links returns the interfaces of the pods that the kernel has, or will have as soon as the agent adds their elements.
func (l *attachments) links() map[string]podfilter.Link {
	all := map[string]podfilter.Link{}
	add := func(p *podRequest) {
		link := p.Link()
		if mac := l.macs[p.Bridge]; mac != "" {
			link.BridgeMAC = mac
		}
		l.addGateway(&link)
		all[p.Label] = link
	}
	for _, p := range l.recorded {
		add(p)
	}
	for _, a := range l.announced {
		if a.byAgent {
			add(a.pod)
		}
	}
	return all
}

// delegateOf returns the network of the role multi whose attachment is a, or nil, and the CNI_ARGS of its ADD.
func delegateOf(all []store.Delegation, a *store.Attachment) (network *store.Delegate, args string) {
	for i := range all {
		if all[i].Owner.ContainerID != a.ContainerID {
			continue
		}
		for j := range all[i].Delegates {
			if d := &all[i].Delegates[j]; d.IfName == a.IfName {
				return d, all[i].Args
			}
		}
	}
	return nil, ""
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

// bypassing returns an error that names the pods that policies select and that the node's packet filter cannot filter.
func (l *attachments) bypassing(t *netpolicy.Table) error {
	var names []string
	for label := range l.unfiltered {
		if title := t.Selected()[label]; title != "" {
			names = append(names, title)
		}
	}
	var errs []error
	if len(names) > 0 {
		slices.Sort(names)
		errs = append(errs, fmt.Errorf("network policies select pods whose interfaces bypass the node's packet filter or have no addresses, so they are not enforced: %s: attach them by bridge, ptp or routed",
			strings.Join(names, ", ")))
	}
	conflicts := t.Conflicts()
	for _, label := range slices.Sorted(maps.Keys(conflicts)) {
		errs = append(errs, errors.New(conflicts[label]+": its packets are dropped: use networks with different addresses"))
	}
	return errors.Join(append(errs, l.besides(t))...)
}

// forgetFound removes the pods from a table that the source has not sent and whose attachments have ended: if they were deleted before,
// the source never sends them.
func (l *attachments) forgetFound(t *netpolicy.Table) {
	maps.DeleteFunc(l.found, func(label string, p *netpolicy.Pod) bool {
		sent := t.Pod(p.Namespace, p.Name) != p
		ended := l.recorded[label] == nil && l.announced[label].pod == nil
		if ended && !sent {
			t.RemovePod(p.Namespace, p.Name)
		}
		return sent || ended
	})
}

// putInto changes a table that lacks a change.
func (l *attachments) putInto(t *netpolicy.Table) {
	l.forgetFound(t)
	if !l.changed && !l.unknown {
		return
	}
	l.changed = false
	var locals []netpolicy.Local
	known := map[string]bool{}
	for _, p := range l.all() {
		if p.Other {
			continue
		}
		local := netpolicy.Local{
			Label: p.Label, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Network: p.Network, Addresses: p.Addresses, Bridge: p.Bridge,
			Pending: l.recorded[p.Label] == nil && !l.announced[p.Label].byAgent,
		}
		if p.Bridge != "" {
			local.Port = p.Port
		}
		switch {
		case l.arePods && p.Name != "": // two containers may have one name
			local.Name = p.Label
			pod := &netpolicy.Pod{Namespace: p.Namespace, Name: p.Label, Container: p.Name, UID: p.UID, Labels: p.Labels, Addresses: p.Addresses}
			if p.Network != "" {
				pod.Addresses, pod.Networks = nil, map[string][]netip.Addr{p.Network: p.Addresses}
			}
			known[pod.Key()] = true
			t.PutPod(pod)
		case p.Name == "":
			if pod := withAddresses(t, p.Addresses); pod != nil {
				local.Namespace, local.Name, local.UID = pod.Namespace, pod.Name, pod.UID
			}
		}
		locals = append(locals, local)
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

// withAddresses returns the one pod that has one of some addresses, or nil.
func withAddresses(t *netpolicy.Table, addresses []netip.Addr) (found *netpolicy.Pod) {
	for _, p := range t.Pods() {
		if p.HostNetwork || p.Finished || !slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return slices.Contains(addresses, a) }) {
			continue
		}
		if found != nil {
			return nil
		}
		found = p
	}
	return found
}
