package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/store"
)

// Role is the portmap role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"portmap"},
		Summary:      "ports of the node that lead to a container",
		Reference:    "v1.9.1",
		Capabilities: []string{"portMappings"},
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained and attach.LegacyCleaner for one configuration.
type role struct{ conf *Conf }

// Wants tells whether any port is to be mapped.
func (r *role) Wants() bool { return len(r.conf.RuntimeConfig.PortMappings) > 0 }

func (r *role) Shared() []string { return []string{"portmap/" + r.conf.Name} }

// observed is what Build needs to know of the node.
type observed struct {
	// Toward4 and Toward6 are the devices that lead to the container, where
	// connections from loopback addresses have to leave by them.
	Toward4, Toward6 device
	// Held are the claims that another attachment of the same container has: a
	// runtime gives the ports of a container to each of its networks.
	Held []string
}

// device is one of the host's.
type device struct {
	// Name is empty where there is none.
	Name  string
	Index int
	// Own tells that it goes with the attachment.
	Own bool
}

// Observe reads who has the ports, and by which devices the container is reached.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	ends, err := containerEnds(in)
	if err != nil {
		return err
	}
	ports := r.conf.ports(ends)
	if in.Observed == nil && in.Prev == nil {
		r.warn(h, in, ends)
	}
	var o observed
	if o.Held, err = r.held(ctx, h, in, ports); err != nil {
		return err
	}
	if in.Observed == nil && in.Prev == nil && len(o.Held) > 0 {
		h.Log.Info("another network of the container has mapped ports already, they stay with it",
			"network", in.Key.Network, "container", in.Key.ContainerID, "ports", o.Held)
	}
	if in.Observed == nil && in.Prev == nil {
		if err := foreignHolder(ctx, h, in, ports); err != nil {
			return err
		}
	}
	if r.conf.hidesSources() {
		err = errors.Join(
			toward(ctx, h, in, ends.four.Addr(), meetsLoopback(ports, true), &o.Toward4),
			toward(ctx, h, in, ends.six.Addr(), meetsLoopback(ports, false), &o.Toward6),
		)
	}
	in.Observed = o
	return err
}

// warn tells what is served otherwise than the configuration has it.
func (r *role) warn(h *roles.Host, in *attach.Input, e ends) {
	if r.conf.Backend == "iptables" {
		h.Log.Warn("backend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
	if r.conf.ExternalSetMarkChain != "" {
		h.Log.Warn("externalSetMarkChain is not called: sources are hidden by a rule of our own", "network", in.Key.Network, "chain", r.conf.ExternalSetMarkChain)
	}
	for _, m := range r.conf.RuntimeConfig.PortMappings {
		if m.hostIP.IsValid() && !e.of(m.hostIP.Is4()).IsValid() {
			h.Log.Warn("the container has no address of the family of hostIP, the port is not mapped", "network", in.Key.Network, "hostIP", m.HostIP, "hostPort", m.HostPort)
		}
	}
}

// held lists the ports that other attachments of the same container have. One
// that another container has is an error that names it, and so is the address
// that ports are to lead to.
func (r *role) held(ctx context.Context, h *roles.Host, in *attach.Input, ports []port) ([]string, error) {
	var names []string
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		for _, c := range r.claims(ports) {
			other, err := tx.Holder(c.Kind, c.Name, in.Key)
			switch {
			case err != nil:
				return err
			case other == nil:
			case c.Kind != claimPort || other.Owner.ContainerID != in.Key.ContainerID:
				return &store.TakenError{What: c.Kind + " " + c.Name, Owner: other.Owner}
			default:
				names = append(names, c.Name)
			}
		}
		return nil
	})
	return names, err
}

// toward reads which device leads to a container's address. Without a route
// there is none, and no connection that could need it.
func toward(ctx context.Context, h *roles.Host, in *attach.Input, to netip.Addr, wanted bool, d *device) error {
	if !to.IsValid() || !wanted {
		return nil
	}
	l, err := h.Net.LinkToward(ctx, nil, to)
	if errors.Is(err, netops.ErrNotExist) || l.Name == "lo" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("device toward the container: %w", err)
	}
	*d = device{Name: l.Name, Index: l.Index, Own: l.Kind == "veth" && slices.ContainsFunc(in.Chained.Interfaces, func(i *roles.ResultInterface) bool {
		return i.Name == l.Name && i.Sandbox == ""
	})}
	return nil
}

// CleanLegacy removes what an ADD left whose state was lost, by the attachment's
// label, and what the reference plugin left.
func (r *role) CleanLegacy(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	var e ends
	if in.Prev != nil {
		// Without addresses of its own there is nothing more to look for.
		e, _ = containerEnds(in)
	}
	return errors.Join(r.removeOwn(ctx, h, in, e), removeForeign(ctx, h, in))
}

// removeOwn deletes elements that have the attachment's label. Where prevResult
// tells the container's addresses their keys are known; else all are read.
func (r *role) removeOwn(ctx context.Context, h *roles.Host, in *attach.Input, e ends) error {
	var spec netops.Spec
	if e.four.IsValid() || e.six.IsValid() {
		in.Observed = observed{}
		w, err := r.Build(in)
		if err != nil {
			return err
		}
		spec = w.Spec
	} else {
		all, err := h.Net.Labelled(ctx, in.Label)
		if err != nil {
			return err
		}
		for _, o := range all {
			spec.Add(o)
		}
	}
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.Element)
		return !is
	})
	return h.Net.Remove(ctx, spec, nil)
}
