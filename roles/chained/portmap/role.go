package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/store"
)

// Role is the portmap role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"portmap"},
		Summary:      "ports of the node that lead to a container",
		Reference:    "v1.10.0",
		Capabilities: []string{"portMappings"},
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained and attach.ReferenceCleaner for one configuration.
type role struct{ conf *Conf }

// Wants reports whether there is a port to map.
func (r *role) Wants() bool { return len(r.conf.RuntimeConfig.PortMappings) > 0 }

func (r *role) Shared() []string { return []string{"portmap/" + r.conf.Name} }

// observed is the node's state that Build needs.
type observed struct {
	// Toward4 and Toward6 are the devices of the routes to the container, set
	// only if connections from loopback addresses can leave through them.
	Toward4, Toward6 device
	// Held are the claims that another attachment of the same container has: a
	// runtime passes the ports of a container to each of its networks.
	Held []store.Ports
	// Kept are the node's sockets that keep their connections. CHECK does not read them.
	Kept []socket
}

// device is an interface of the host.
type device struct {
	// Name is empty if there is no device.
	Name  string
	Index int
	// Own reports that the device is removed with the attachment.
	Own bool
}

// Observe reads which attachments hold the ports, and through which devices the
// host reaches the container.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	addrs, err := containerTargets(in)
	if err != nil {
		return err
	}
	before, again := in.Observed.(observed)
	adds := !again && in.Prev == nil
	if adds {
		if err := r.conf.checkCount(); err != nil {
			return err
		}
		r.warn(h, in, addrs)
	}
	ports := r.conf.ports(addrs)
	o := observed{Kept: before.Kept}
	o.Held, err = r.held(ctx, h, in, ports)
	if err != nil {
		return err
	}
	if adds && len(o.Held) > 0 {
		h.Log.Info("another network of the container has already mapped these ports: they stay mapped for that network until its DEL",
			"network", in.Key.Network, "container", in.Key.ContainerID, "ports", o.Held)
	}
	if adds {
		foreign := checkForeignPorts(ctx, h, in, ports)
		free, awaited := without(ports, o.Held)
		o.Kept, err = r.checkListeners(ctx, h, in, free)
		kept, _, awaitedErr := r.listeners(ctx, h, in, awaited)
		if err := errors.Join(foreign, err, awaitedErr); err != nil {
			return err
		}
		o.Kept = append(o.Kept, kept...)
	}
	if r.conf.masquerades() {
		err = errors.Join(
			deviceToward(ctx, h, in, addrs.four.Addr(), reachableByLoopback(ports, true), &o.Toward4),
			deviceToward(ctx, h, in, addrs.six.Addr(), reachableByLoopback(ports, false), &o.Toward6),
		)
	}
	in.Observed = o
	return err
}

// warn logs which keys are implemented differently from the reference plugin.
func (r *role) warn(h *roles.Host, in *attach.Input, e targets) {
	if r.conf.Backend == "iptables" {
		h.Log.Warn("backend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
	if r.conf.ExternalSetMarkChain != "" {
		h.Log.Warn("externalSetMarkChain is not used: cnibox masquerades with its own rules", "network", in.Key.Network, "chain", r.conf.ExternalSetMarkChain)
	}
	for _, m := range r.conf.RuntimeConfig.PortMappings {
		if m.hostIP.IsValid() && !e.of(m.hostIP.Is4()).IsValid() {
			h.Log.Warn("the port is not mapped: the container has no address of hostIP's address family", "network", in.Key.Network, "hostIP", m.HostIP, "hostPort", m.HostPort)
		}
	}
}

// held lists the ports that other attachments of the same container hold. A
// port or a target address that another container holds is a TakenError with
// that attachment.
func (r *role) held(ctx context.Context, h *roles.Host, in *attach.Input, ports []port) ([]store.Ports, error) {
	var held []store.Ports
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		isHeld := func(c store.Resource) (bool, error) {
			taken, err := tx.Holder(c, in.Key)
			if err != nil || taken == nil {
				return false, err
			}
			if c.Kind != store.KindPort || taken.Owner.ContainerID != in.Key.ContainerID {
				return false, taken
			}
			return true, nil
		}
		some := false
		for _, c := range r.claims(ports) {
			is, err := isHeld(c)
			if err != nil {
				return err
			}
			some = some || is
		}
		for _, p := range ports {
			if !some {
				return nil
			}
			is, err := isHeld(store.Resource{Kind: store.KindPort, Ports: p.claim()})
			if err != nil {
				return err
			}
			if is && !slices.Contains(held, p.claim()) {
				held = append(held, p.claim())
			}
		}
		return nil
	})
	return held, err
}

// deviceToward reads the device of the route to a container's address. Without
// a route there is no device, and no connection needs one. The same is true of
// a route that leads to another device than the attachment's, because it was
// lost or replaced: an uplink with route_localnet would open the node's
// loopback to its neighbours.
func deviceToward(ctx context.Context, h *roles.Host, in *attach.Input, to netip.Addr, wanted bool, d *device) error {
	if !to.IsValid() || !wanted {
		return nil
	}
	l, err := h.Net.LinkToward(ctx, nil, to)
	if errors.Is(err, netops.ErrNotExist) || l.Name == "lo" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the route to the container: %w", err)
	}
	var listed []netops.LinkInfo
	for _, i := range in.Chained.Interfaces {
		if host, err := h.Net.Link(ctx, nil, i.Name); i.Sandbox == "" && err == nil {
			listed = append(listed, host)
		}
	}
	isListed := func(i netops.LinkInfo) bool { return i.Name == l.Name }
	if len(listed) > 0 && !slices.ContainsFunc(listed, func(i netops.LinkInfo) bool { return isListed(i) || i.MasterIndex == l.Index }) {
		return nil
	}
	*d = device{Name: l.Name, Index: l.Index, Own: l.IsPairEnd() && slices.ContainsFunc(listed, isListed)}
	return nil
}

// CleanReference removes what an ADD without a record left, identified by the
// attachment's label, and what the reference plugin left.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	return errors.Join(removeOwn(ctx, h, in), removeForeign(ctx, h, in))
}

// removeOwn deletes the elements with the attachment's label. Their keys cannot be computed from the ports: some are of the
// sockets that the node had at ADD.
func removeOwn(ctx context.Context, h *roles.Host, in *attach.Input) error {
	all, err := h.Net.Labelled(ctx, in.Label)
	if err != nil {
		return err
	}
	var spec netops.Spec
	for _, o := range all {
		if _, is := o.(*netops.Element); is {
			spec.Add(o)
		}
	}
	return h.Net.Remove(ctx, spec, nil)
}
