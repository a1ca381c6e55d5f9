package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// takeoverRun is one run that makes or reverts a Takeover. It uses only the
// kernel's state, so it continues where an interrupted run ended.
type takeoverRun struct {
	*session
	*Takeover
	c *rtnl.Conn
	// up and br are the uplink and the bridge at the start of the run. br is
	// nil if the bridge was absent.
	up, br *rtnl.Link
}

// stepRequests is a group of requests with the step that they make.
type stepRequests struct {
	step Step
	msgs []nlconn.Message
}

// apply makes the Takeover. A failure restores the uplink, unless it was
// already a port of the bridge, because attachments can depend on that.
func (t *Takeover) apply(ctx context.Context, run *applier, _ []Change) error {
	r, err := t.read(ctx, run.session)
	if err != nil {
		return err
	}
	if err := r.checkUplink(ctx); err != nil {
		return err
	}
	err = r.enslaveUplink(ctx)
	if err == nil || r.up.Master != 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	if again, readErr := t.read(ctx, run.session); readErr != nil || again.br == nil {
		return errors.Join(err, readErr)
	} else if backErr := again.restoreUplink(ctx); backErr != nil {
		return errors.Join(err, fmt.Errorf("restore uplink %q: %w", t.Uplink, backErr))
	}
	return err
}

func (t *Takeover) undo(ctx context.Context, s *session, _ Verb) error {
	return s.net.RestoreUplink(ctx, *t, false)
}

// enslaveUplink creates the bridge and makes it take over the uplink. At every step the
// node has the destination addresses of the packets that the uplink receives,
// and has a working route for the packets that it sends. Packets leave through
// the uplink until the bridge has a carrier and its routes precede those of the
// uplink.
func (r *takeoverRun) enslaveUplink(ctx context.Context) error {
	have, err := placedOn(ctx, r.c, r.up.Index)
	if err != nil {
		return err
	}
	if err := r.makeBridge(ctx); err != nil {
		return err
	}
	to := moveTarget{link: r.Bridge, index: r.br.Index, from: r.Uplink}
	if err := r.followRouterAdverts(&to); err != nil {
		return err
	}
	// The kernel drops IPv4 packets that a link without an address receives,
	// even with the loose source check (fib_validate_source).
	early := have.addrRequests(to, func(a placedAddr) bool { return a.Prefix.Addr().Is4() })
	if err := r.send(ctx, early...); err != nil {
		return err
	}
	if err := r.withRedirect(ctx, r.enslave()...); err != nil {
		return err
	}
	if err := r.awaitCarrier(ctx); err != nil {
		return err
	}
	neighs, err := placedNeighs(ctx, r.c, r.up.Index, true)
	if err != nil {
		return err
	}
	late := have.addrRequests(to, func(a placedAddr) bool { return a.Prefix.Addr().Is6() })
	late = append(late, neighRequests(neighs, to)...)
	routes, err := r.routeRequests(ctx, have, to)
	if err != nil {
		return err
	}
	if err := r.send(ctx, append(late, routes...)...); err != nil {
		return err
	}
	if err := r.awaitAddresses(ctx, to, have); err != nil {
		return err
	}
	// The kernel keeps the route of an IPv6 address that has a lifetime, so
	// delete the route explicitly.
	leaving := append(routeDeletions(r.Uplink, slices.Concat(have.routes, have.connected)), have.addrDeletions(r.Uplink)...)
	if err := r.send(ctx, leaving...); err != nil {
		return err
	}
	return r.finish(ctx)
}

// restoreUplink reverts enslaveUplink.
func (r *takeoverRun) restoreUplink(ctx context.Context) error {
	if r.br == nil {
		return nil
	}
	have, err := placedOn(ctx, r.c, r.br.Index)
	if err != nil {
		return err
	}
	to := moveTarget{link: r.Uplink, index: r.up.Index, from: r.Bridge}
	if err := r.followRouterAdverts(&to); err != nil {
		return err
	}
	enslaved := r.up.Master == r.br.Index
	if enslaved {
		if err := r.relaxRPFilter(ctx); err != nil {
			return err
		}
	}
	neighs, err := placedNeighs(ctx, r.c, r.br.Index, false)
	if err != nil {
		return err
	}
	making := append(have.addrRequests(to, func(placedAddr) bool { return true }), neighRequests(neighs, to)...)
	routes, err := r.routeRequests(ctx, have, to)
	if err != nil {
		return err
	}
	if err := r.send(ctx, append(making, routes...)...); err != nil {
		return err
	}
	if err := r.awaitAddresses(ctx, to, have); err != nil {
		return err
	}
	// The kernel's own routes over the bridge precede those over the uplink.
	// They would make the source check drop the packets that the uplink
	// receives.
	leaving := routeDeletions(r.Bridge, slices.Concat(have.routes, have.connected))
	if err := r.send(ctx, leaving...); err != nil {
		return err
	}
	if enslaved {
		if err := r.withRedirect(ctx, r.release()); err != nil {
			return err
		}
	}
	if ownLabel(r.br.Alias) != takeoverLabel {
		return r.send(ctx, have.addrDeletions(r.Bridge)...)
	}
	if err := r.removeDetour(ctx); err != nil {
		return err
	}
	return r.send(ctx, r.deletion(r.br))
}

// withRedirect adds the uplink as a port, or releases it, while the detour is active.
func (r *takeoverRun) withRedirect(ctx context.Context, requests ...stepRequests) error {
	if len(requests) == 0 {
		return nil
	}
	if err := r.makeDetour(ctx); err != nil {
		return err
	}
	if err := r.addRedirect(ctx); err != nil {
		return err
	}
	if err := r.send(ctx, requests...); err != nil {
		return err
	}
	return r.removeRedirect(ctx)
}

// addrRequests returns the requests that add to a link the addresses that wanted
// accepts, including the uplink's own link-local addresses.
func (p *placed) addrRequests(to moveTarget, wanted func(placedAddr) bool) []stepRequests {
	var all []stepRequests
	for _, a := range slices.Concat(p.local, p.addrs) {
		if wanted(a) {
			all = append(all, stepRequests{Step{VerbAdd, a.object(to.link)}, []nlconn.Message{a.add(to)}})
		}
	}
	return all
}

// routeRequests returns the requests that add routes to a link. The kernel adds
// the connected routes of new addresses. Addresses that the link already has can
// lack theirs. The link can already have a route from a router advertisement,
// with another metric.
func (r *takeoverRun) routeRequests(ctx context.Context, p *placed, to moveTarget) ([]stepRequests, error) {
	there, err := placedOn(ctx, r.c, to.index)
	if err != nil {
		return nil, err
	}
	var all []stepRequests
	for _, route := range slices.Concat(p.connected, p.routes) {
		advertised := func(other placedRoute) bool {
			return other.Protocol == unix.RTPROT_RA && other.Dst == route.Dst && other.Via == route.Via
		}
		if route.Protocol == unix.RTPROT_RA && slices.ContainsFunc(there.routes, advertised) {
			continue
		}
		all = append(all, stepRequests{Step{VerbAdd, route.object(to.link)}, []nlconn.Message{route.add(to)}})
	}
	return all, nil
}

func neighRequests(neighs []rtnl.Neigh, to moveTarget) []stepRequests {
	var all []stepRequests
	for _, n := range neighs {
		o := &Neigh{In: Host, Shared: true, Link: to.link, IP: n.IP, MAC: n.MAC.String()}
		all = append(all, stepRequests{Step{VerbAdd, o}, []nlconn.Message{addNeigh(n, to)}})
	}
	return all
}

// routeDeletions returns the requests that delete routes, in reverse order.
func routeDeletions(link string, routes []placedRoute) []stepRequests {
	var all []stepRequests
	for _, r := range slices.Backward(routes) {
		all = append(all, stepRequests{Step{VerbDel, r.object(link)}, []nlconn.Message{r.del()}})
	}
	return all
}

func (p *placed) addrDeletions(link string) []stepRequests {
	var all []stepRequests
	for _, a := range slices.Backward(p.addrs) {
		all = append(all, stepRequests{Step{VerbDel, a.object(link)}, []nlconn.Message{a.del()}})
	}
	return all
}

// enslave returns the requests that make the uplink a port.
func (r *takeoverRun) enslave() []stepRequests {
	var all []stepRequests
	if r.up.Master != r.br.Index {
		l := &Link{In: Host, Shared: true, Name: r.Uplink, Master: r.Bridge}
		all = append(all, stepRequests{Step{VerbSet, l}, []nlconn.Message{masterMessage(r.up.Index, r.br.Index)}})
	}
	if hairpin := !r.NoHairpin; r.up.Port == nil || r.up.Port.Hairpin != hairpin {
		l := &Link{In: Host, Shared: true, Name: r.Uplink, Port: &Port{Hairpin: hairpin}}
		m := rtnl.LinkMessage(unix.RTM_NEWLINK, r.up.Index)
		m.Nest(unix.IFLA_LINKINFO, func() {
			m.Bytes(nl.IFLA_INFO_SLAVE_KIND, []byte(rtnl.KindBridge))
			m.Nest(nl.IFLA_INFO_SLAVE_DATA, func() { m.Bool(nl.IFLA_BRPORT_MODE, hairpin) })
		})
		all = append(all, stepRequests{Step{VerbSet, l}, []nlconn.Message{m}})
	}
	return all
}

// release returns the request that releases the uplink from the bridge.
func (r *takeoverRun) release() stepRequests {
	l := &Link{In: Host, Shared: true, Name: r.Uplink, Unset: &Unset{Master: true}}
	return stepRequests{Step{VerbSet, l}, []nlconn.Message{masterMessage(r.up.Index, 0)}}
}

// deletion returns the request that deletes a link of cnibox.
func (r *takeoverRun) deletion(have *rtnl.Link) stepRequests {
	delete(r.index, linkRef{Host, have.Name})
	l := &Link{In: Host, Shared: true, Name: have.Name, Kind: have.Kind, Alias: have.Alias}
	return stepRequests{Step{VerbDel, l}, []nlconn.Message{rtnl.LinkMessage(unix.RTM_DELLINK, have.Index)}}
}

// otherPorts returns the names of the bridge's ports except the uplink.
func (r *takeoverRun) otherPorts(ctx context.Context) ([]string, error) {
	links, err := r.c.Links(ctx)
	var names []string
	for _, l := range links {
		if l.Master == r.br.Index && l.Index != r.up.Index && l.Name != r.detourEnd(false) {
			names = append(names, l.Name)
		}
	}
	return names, err
}

// send sends the requests in as few writes as possible, or one write for each
// step if there is a probe. It is not an error to add an existing object or
// delete an absent one.
func (r *takeoverRun) send(ctx context.Context, requests ...stepRequests) error {
	for len(requests) > 0 {
		n := 0
		var msgs []nlconn.Message
		for n < len(requests) && (n == 0 || r.net.probe == nil && len(msgs)+len(requests[n].msgs) <= nlconn.MaxWrite) {
			msgs = append(msgs, requests[n].msgs...)
			n++
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.probed(requests[0].step, func() error { return r.write(ctx, requests[:n], msgs) }); err != nil {
			return err
		}
		requests = requests[n:]
	}
	return nil
}

func (r *takeoverRun) write(ctx context.Context, requests []stepRequests, msgs []nlconn.Message) error {
	results, broken := r.c.Exchange(ctx, msgs)
	if broken != nil {
		return describeStep(requests[0].step, broken)
	}
	var errs []error
	i := 0
	for _, p := range requests {
		for range p.msgs {
			err := results[i]
			i++
			fine := err == nil || p.step.Verb == VerbDel && nlconn.IsAbsent(err) || p.step.Verb == VerbAdd && errors.Is(err, unix.EEXIST)
			if !fine {
				errs = append(errs, describeStep(p.step, err))
			}
		}
	}
	return errors.Join(errs...)
}

// takeoverPatience limits the waits for asynchronous work of the kernel. The
// work takes about a millisecond, and longer on a busy node.
const takeoverPatience = 30 * time.Second

// awaitCarrier waits until the bridge can carry traffic. Before that the kernel
// drops packets that the bridge sends. If the uplink has no carrier, the bridge
// has none either, and awaitCarrier returns at once.
func (r *takeoverRun) awaitCarrier(ctx context.Context) error {
	if r.up.Oper != rtnl.OperUp {
		return nil
	}
	err := r.await(ctx, unix.RTNLGRP_LINK, func(ctx context.Context) (bool, error) {
		br, err := r.c.LinkByIndex(ctx, r.br.Index)
		return err == nil && br.Oper == rtnl.OperUp && br.Flags&unix.IFF_LOWER_UP != 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the carrier of bridge %q: %w", r.Bridge, err)
	}
	return nil
}

// awaitAddresses waits until the node accepts packets for the IPv6 addresses
// that were added to a link. The kernel adds the local routes asynchronously,
// together with duplicate address detection (addrconf_dad_work).
func (r *takeoverRun) awaitAddresses(ctx context.Context, to moveTarget, p *placed) error {
	wanted := map[netip.Addr]bool{}
	for _, a := range p.addrs {
		if a.Prefix.Addr().Is6() {
			wanted[a.Prefix.Addr()] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	err := r.await(ctx, unix.RTNLGRP_IPV6_ROUTE, func(ctx context.Context) (bool, error) {
		local := rtnl.RoutesRequest{Link: to.index, Table: unix.RT_TABLE_LOCAL, Kind: unix.RTN_LOCAL}
		routes, err := r.c.RoutesOf(ctx, unix.AF_INET6, local)
		have := map[netip.Addr]bool{}
		for _, l := range routes {
			if wanted[l.Dst.Addr()] && l.Dst.IsSingleIP() {
				have[l.Dst.Addr()] = true
			}
		}
		return len(have) == len(wanted), err
	})
	if err != nil {
		return fmt.Errorf("wait for the IPv6 addresses of %q: %w", to.link, err)
	}
	return nil
}

// await waits until done returns true. It calls done after each notification of
// the multicast group.
func (r *takeoverRun) await(ctx context.Context, group int, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverPatience)
	defer cancel()
	return r.net.host.await(ctx, group, done)
}
