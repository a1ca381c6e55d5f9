package netops

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// PodPolicy puts the addresses of a pod into the maps of the table that enforces policies: each address gets the chains of
// the policies that select the pod. In a Spec it precedes the pod's link, so no packet passes before it. The agent
// changes the chains of the same elements later. It is also the record of which pod an attachment is of.
type PodPolicy struct {
	// Label is that of the attachment.
	Label string `json:"label"`
	// Namespace, Name, UID and Labels identify the pod for the agent.
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Network is that of the attachment if it is another one than the cluster's.
	Network   string       `json:"network,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	// Egress and Ingress are chains, or "" in a direction in which no policy selects the pod.
	Egress  string `json:"egress,omitempty"`
	Ingress string `json:"ingress,omitempty"`
	// Other is true for an interface to which no policies apply.
	Other bool `json:"other,omitempty"`
	// Port is the pod's link on the host, and Bridge the bridge of which it is a port. Each may be "".
	Port   string `json:"port,omitempty"`
	Bridge string `json:"bridge,omitempty"`
	// MAC is that of the pod's interface, and BridgeMAC that of Bridge. Each may be "".
	MAC       string `json:"mac,omitempty"`
	BridgeMAC string `json:"bridgeMAC,omitempty"`
	// AnyAddress is true if the pod can have other addresses than these.
	AnyAddress bool `json:"anyAddress,omitempty"`
	// Allowed are networks whose addresses it may have too. Router is true if it may send router advertisements and answers of DHCP.
	Allowed []netip.Prefix `json:"allowed,omitempty"`
	Router  bool           `json:"router,omitempty"`
	// Gateways are the addresses that the pod's network has on the node.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// ByAgent is true if the agent chose the chains in this call.
	ByAgent bool `json:"-"`
}

// Where returns Host: the table is in the host's namespace.
func (p *PodPolicy) Where() Place { return Host }

// IsShared returns false.
func (p *PodPolicy) IsShared() bool { return false }

// String names the pod and its chains.
func (p *PodPolicy) String() string {
	w := words{"pod-policy", p.Namespace + "/" + p.Name}
	w.value("network", p.Network)
	for _, a := range p.Addresses {
		w.value("address", a.String())
	}
	w.value("egress", p.Egress)
	w.value("ingress", p.Ingress)
	return w.String()
}

func (p *PodPolicy) validate() error {
	var errs []error
	for _, a := range slices.Concat(p.Addresses, p.Gateways) {
		errs = append(errs, checkAddr("pod address", a))
		if !a.IsValid() {
			errs = append(errs, fmt.Errorf("pod address without a value: %w", ErrInvalid))
		}
	}
	if p.Label == "" {
		errs = append(errs, fmt.Errorf("without a label: %w", ErrInvalid))
	}
	for _, name := range []string{p.Port, p.Bridge} {
		if len(name) >= unix.IFNAMSIZ {
			errs = append(errs, fmt.Errorf("link %q: the name is too long: %w", name, ErrInvalid))
		}
	}
	for _, a := range p.Allowed {
		if !a.IsValid() || a != a.Masked() {
			errs = append(errs, fmt.Errorf("allowed addresses %s: %w", a, ErrInvalid))
		}
	}
	for _, mac := range []string{p.MAC, p.BridgeMAC} {
		errs = append(errs, rtnl.CheckMAC(mac))
	}
	return errors.Join(errs...)
}

// Check returns an error if the kernel would refuse the elements.
func (p *PodPolicy) Check() error { return p.validate() }

func (p *PodPolicy) plan(context.Context, *session) ([]Change, error) { //nolint:unparam // the error is that of kernelObject
	return []Change{{Do: Step{VerbAdd, p}, Undo: &Step{VerbDel, p}}}, nil
}

// verify reports no difference: the agent compares the table with the policies.
func (p *PodPolicy) verify(context.Context, *session) ([]Difference, error) { return nil, nil }

// Link returns the pod's interface.
func (p *PodPolicy) Link() podtable.Link {
	return podtable.Link{
		Label: p.Label, Name: p.Port, Bridge: p.Bridge, MAC: p.MAC, BridgeMAC: p.BridgeMAC, Addresses: p.Addresses, AnyAddress: p.AnyAddress,
		Allowed: p.Allowed, Router: p.Router, Gateways: p.Gateways,
	}
}

// entries returns the elements of the pod by their sets: each set needs one message.
func (p *PodPolicy) entries(egress, ingress string) (all []*nft.Entry, err error) {
	schema := podtable.Schema()
	pod, link := podtable.Pod{Egress: egress, Ingress: ingress, Label: p.Label, Bridge: p.Bridge}, p.Link()
	if p.Bridge != "" {
		pod.Port = p.Port
	}
	elements := podtable.LinkElements(&link)
	for _, a := range p.Addresses {
		elements = append(elements, podtable.Elements(a, &pod)...)
	}
	for _, e := range elements {
		n, err := nft.EntryOf(schema, e)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(o *nft.Entry) bool { return o.Set == n.Set && bytes.Equal(o.Key, n.Key) }) {
			all = append(all, n)
		}
	}
	sorting.Stable(all, func(a, b *nft.Entry) int { return strings.Compare(a.Set.Name, b.Set.Name) })
	return all, nil
}

// deniedIf returns the chain that drops everything in place of another one.
func deniedIf(chain string) string {
	if chain != "" {
		return podtable.Deny
	}
	return ""
}

// apply makes the bridge pass its packets to the table, and lets the agent add the elements: a socket of nftables closes only when the kernel has
// freed what other processes deleted (10 ms). If the agent does not, apply adds them itself. Where a chain or the table is absent, these are
// elements that drop everything until the agent changes them.
func (p *PodPolicy) apply(ctx context.Context, run *applier, batch []Change) error {
	if p.Bridge == "" {
		return p.addElements(ctx, run, batch[0])
	}
	br, err := run.filterBridge(ctx, p.Bridge)
	if err != nil {
		return err
	}
	p.BridgeMAC = br.MAC.String()
	if err := p.addElements(ctx, run, batch[0]); err != nil {
		return err
	}
	return run.forgetNeighbours(ctx, br.Index, p.Addresses)
}

// addElements adds the pod's elements by the agent or itself.
func (p *PodPolicy) addElements(ctx context.Context, run *applier, change Change) error {
	run.done = append(run.done, change)
	entries, err := p.entries(p.Egress, p.Ingress)
	if err != nil || len(entries) == 0 {
		return err
	}
	if ask := run.net.podPolicy; p.ByAgent && ask != nil && ask(ctx, VerbAdd, p) == nil {
		return nil
	}
	return p.add(ctx, run.net.nft, entries)
}

// RestorePodPolicy adds the elements of p that another program deleted. Unlike Apply it deletes nothing if it fails: what is left of the elements
// keeps the pod's packets from passing.
func (n *Net) RestorePodPolicy(ctx context.Context, p *PodPolicy) error {
	entries, err := p.entries(p.Egress, p.Ingress)
	if err != nil || len(entries) == 0 {
		return err
	}
	return n.Probed(p.String, func() error { return p.add(ctx, n.nft, entries) })
}

// add adds the elements of the pod.
func (p *PodPolicy) add(ctx context.Context, client *nft.Client, entries []*nft.Entry) (err error) {
	var base []nlconn.Message
	for range nft.Tries {
		err = client.Commit(ctx, 0, append(base, nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, entries)...)...)
		wasBase := base != nil
		base = nil
		var failed error
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.ENOENT) && p.Bridge == "" && slices.ContainsFunc(entries, isBridged): // the node may have no bridge
			entries = slices.DeleteFunc(entries, isBridged)
		case errors.Is(err, unix.ENOENT):
			if failed = p.makeBridgeTable(ctx, client); failed == nil {
				entries, failed = p.entries(deniedIf(p.Egress), deniedIf(p.Ingress))
			}
			if p.Bridge == "" {
				entries = slices.DeleteFunc(entries, isBridged)
			}
			base = podtable.Base(podtable.Form{Node: true})
		case errors.Is(err, unix.EEXIST) && wasBase: // another process made the table, an earlier version did, or only a chain is absent
			failed = p.makeSets(ctx, client)
		case errors.Is(err, unix.EEXIST):
			failed = p.deleteHeld(ctx, client, &entries)
			if len(entries) == 0 {
				return failed
			}
		default:
			failed = err
		}
		if failed != nil {
			return nlconn.Explain(failed, p.String())
		}
	}
	return fmt.Errorf("add %s: %w: the nftables table %s is being changed: %w", p, ErrBusy, podtable.Table(), err)
}

// isBridged reports whether an element is in the table of bridges.
func isBridged(n *nft.Entry) bool { return n.Set.Table == podtable.BridgeTable() }

// makeSets makes the sets that a table of an earlier version lacks. The agent makes the rest.
func (p *PodPolicy) makeSets(ctx context.Context, client *nft.Client) error {
	for _, f := range podtable.Schema() {
		if f.Table == podtable.BridgeTable() && p.Bridge == "" {
			continue
		}
		msgs := f.Messages()
		for i := range msgs {
			msgs[i].Flags &^= unix.NLM_F_EXCL
		}
		if err := client.Commit(ctx, 0, msgs...); err != nil {
			return nlconn.Explain(err, "make sets of nftables table "+f.Table.String())
		}
	}
	return nil
}

// makeBridgeTable makes the table of bridges for a pod that is on one, unless it exists.
func (p *PodPolicy) makeBridgeTable(ctx context.Context, client *nft.Client) error {
	if p.Bridge == "" {
		return nil
	}
	err := client.Commit(ctx, 0, podtable.BridgeBase(false)...)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return nlconn.Explain(err, "make nftables table "+podtable.BridgeTable().String())
}

// deleteHeld removes entries that the agent has added already, and deletes elements of an earlier pod with the same
// address.
func (p *PodPolicy) deleteHeld(ctx context.Context, client *nft.Client, entries *[]*nft.Entry) error {
	var left, held []*nft.Entry
	for _, n := range *entries {
		have, err := client.Holder(ctx, n)
		switch {
		case err != nil:
			return err
		case have != nil && have.Label() == n.Label():
			continue
		case have != nil:
			held = append(held, have.Bare())
		}
		left = append(left, n)
	}
	*entries = left
	err := client.Commit(ctx, 0, nft.ElementMessages(unix.NFT_MSG_DELSETELEM, 0, held)...)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// undo deletes the pod's elements, as apply adds them.
func (p *PodPolicy) undo(ctx context.Context, s *session, _ Verb) error {
	if ask := s.net.podPolicy; ask != nil && ask(ctx, VerbDel, p) == nil {
		return nil
	}
	return s.net.DeletePodPolicy(ctx, p)
}

// DeletePodPolicy deletes the elements of p, whatever their chains are now. Those of the bridge stay for other pods: the agent deletes them.
func (n *Net) DeletePodPolicy(ctx context.Context, p *PodPolicy) error {
	entries, err := p.entries(podtable.Deny, podtable.Deny)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(n *nft.Entry) bool { return n.Label() != nft.CleanLabel(p.Label) })
	return n.nft.Unchanged(ctx, func(generation uint32) error { // else the address may be another pod's
		own, err := n.nft.Held(ctx, entries)
		if err != nil {
			return err
		}
		return n.nft.Commit(ctx, generation, nft.ElementMessages(unix.NFT_MSG_DELSETELEM, 0, own)...)
	})
}

// LacksPodPolicy reports whether the kernel lacks an element of p that leads to a chain. Which chain does not count, because the agent changes
// it, and neither do other elements: the table may be another version's, which has other sets.
func (n *Net) LacksPodPolicy(ctx context.Context, p *PodPolicy) (bool, error) {
	entries, err := p.entries(p.Egress, p.Ingress)
	if err != nil {
		return false, err
	}
	for _, want := range entries {
		if len(want.Set.Data) == 0 {
			continue
		}
		have, err := n.nft.Holder(ctx, want)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, ErrNotExist) {
			return false, err
		}
		if have == nil || have.Label() != want.Label() {
			return true, nil
		}
	}
	return false, nil
}

// bridgeFilter is the directory of br_netfilter's settings. Without that module the kernel does not pass packets between
// the ports of a bridge to nftables' inet family.
const bridgeFilter = "net/bridge/bridge-nf-call-iptables"

// filterBridge makes the packets between the ports of a bridge pass nftables' chains.
func (s *session) filterBridge(ctx context.Context, bridge string) (*rtnl.Link, error) {
	if _, err := s.net.host.sysctl(bridgeFilter); errors.Is(err, ErrNotExist) {
		return nil, fmt.Errorf("enforce policies on bridge %s: %w: the kernel module br_netfilter is absent: run 'modprobe br_netfilter'", bridge, ErrNotSupported)
	}
	c, err := s.net.host.socket()
	if err != nil {
		return nil, err
	}
	br, err := c.Link(ctx, bridge)
	if err != nil {
		return nil, nlconn.Explain(err, "read bridge "+bridge)
	}
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, br.Index)
	set := rtnl.Link{Kind: rtnl.KindBridge, KindState: rtnl.KindState{Filter4: true, Filter6: true}}
	set.AddKind(&m.Body)
	return br, nlconn.Explain(c.One(ctx, m), "filter the packets of bridge "+bridge)
}

// FilterBridge makes the packets between the ports of a bridge pass nftables' chains, as a PodPolicy does. It returns the bridge's MAC.
func (n *Net) FilterBridge(ctx context.Context, bridge string) (mac string, err error) {
	br, err := n.session(nil).filterBridge(ctx, bridge)
	if err != nil {
		return "", err
	}
	return br.MAC.String(), nil
}

// GroupPodLink puts the link of a pod that was attached without policies into the group of such links: a later name then does not free it from the
// rules.
func (n *Net) GroupPodLink(ctx context.Context, index int) error {
	c, err := n.host.socket()
	if err != nil {
		return err
	}
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, index)
	m.Uint32(unix.IFLA_GROUP, podtable.Group)
	return nlconn.Explain(c.One(ctx, m), "set the group of a pod's link")
}

// WidestNetworks returns networks in their order without those within others.
func WidestNetworks(all []netip.Prefix) []netip.Prefix { return podtable.Widest(all) }

// HasPodPorts reports whether a link of the host is a bridge with links of pods for which the node enforces policies.
func (n *Net) HasPodPorts(ctx context.Context, bridge string) (bool, error) {
	all, err := n.Links(ctx, nil)
	return slices.ContainsFunc(all, func(l LinkInfo) bool { return l.Group == podtable.Group && l.Master == bridge }), err
}

// forgetNeighbours deletes what a link knows of addresses, with the packets that wait for an answer to ARP or ND: these were sent before the
// addresses were the pod's, and would be the first that it receives.
func (s *session) forgetNeighbours(ctx context.Context, link int, addresses []netip.Addr) error {
	c, err := s.net.host.socket()
	if err != nil {
		return err
	}
	var msgs []nlconn.Message
	for _, a := range addresses {
		n := rtnl.Neigh{Link: link, Family: rtnl.Family(a), IP: a}
		msgs = append(msgs, nlconn.Message{Kind: unix.RTM_DELNEIGH, Body: n.Append(nil)})
	}
	results, err := c.Exchange(ctx, msgs)
	for _, r := range results {
		if r != nil && !nlconn.IsAbsent(r) {
			err = errors.Join(err, r)
		}
	}
	return nlconn.Explain(err, "delete neighbours of a bridge")
}

// WithPodPolicy returns the Spec with p before the first of the attachment's own links on the host, and in p the name of that link if it is
// of a pair, its bridge and the MAC of its peer.
func (s *Spec) WithPodPolicy(p *PodPolicy) Spec {
	at := 0
	objects := slices.Clone(s.Objects)
	for i, o := range objects {
		if a, ok := o.(*Addr); ok && a.Shared && a.In == Host {
			p.Gateways = append(p.Gateways, a.Address.Addr())
		}
		l, ok := o.(*Link)
		if !ok {
			continue
		}
		if !l.Shared && l.In == Host {
			at = i
			if l.IsPairEnd() && l.Peer != nil {
				p.Port, p.Bridge, p.MAC = l.Name, l.Master, l.Peer.MAC
				own := *l
				own.DevGroup = cmp.Or(own.DevGroup, podtable.Group)
				objects[i] = &own
			}
			break
		}
		at = i + 1
	}
	var out Spec
	out.Add(objects[:at]...)
	out.Add(p)
	out.Add(objects[at:]...)
	return out
}

// NodeFilters reports whether the packets of the attachment's link pass the node's packet filter: those of a pair
// do, those of a macvlan, a moved device or a port of Open vSwitch do not.
func (s *Spec) NodeFilters() bool {
	filters := false
	for _, o := range s.Objects {
		switch o := o.(type) {
		case *Link:
			filters = filters || !o.Shared && o.In == Host && o.IsPairEnd()
		case *OVSPort:
			return false
		}
	}
	return filters
}
