package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// Role is the bandwidth role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"bandwidth"},
		Summary:      "limits of rate and burst for what a container sends and receives",
		Reference:    "v1.9.1",
		Capabilities: []string{"bandwidth"},
	}, func(c *Conf) attach.Chained { return newRole(c) })
}

// role implements attach.Chained and attach.LegacyCleaner for one configuration. A
// direction without a limit is nil.
type role struct {
	conf            *Conf
	ingress, egress *netops.TBF
}

// newRole reads the limits of a configuration.
func newRole(c *Conf) *role {
	l, _ := c.limits()
	return &role{conf: c, ingress: c.bucket(l.IngressRate, l.IngressBurst), egress: c.bucket(l.EgressRate, l.EgressBurst)}
}

// Wants is false without limits: then nothing is touched.
func (r *role) Wants() bool { return r.ingress != nil || r.egress != nil }

// Shared is nothing: all that is made is the attachment's own.
func (r *role) Shared() []string { return nil }

// observed is the host's end of the container's interface.
type observed struct {
	Name string
	MTU  int
}

// Observe finds the host's end of the interface, by what the kernel says of the
// pair: prevResult may list several.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var err error
	var o observed
	if container == nil {
		o, err = listed(in)
	} else {
		o, err = hostEnd(ctx, h, in, container)
	}
	if err != nil {
		return err
	}
	if in.Prev == nil && in.Observed == nil {
		r.warn(h, o.MTU)
	}
	in.Observed = o
	return nil
}

// hostEnd reads the other end of the container's interface.
func hostEnd(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) (observed, error) {
	l, err := h.Net.HostEnd(ctx, container, in.Key.IfName)
	if err != nil {
		return observed{}, fmt.Errorf("limit interface %q, which needs a veth with an end in the host: %w", in.Key.IfName, err)
	}
	if !slices.ContainsFunc(in.Chained.Interfaces, func(i *roles.ResultInterface) bool { return i.Sandbox == "" && i.Name == l.Name }) {
		return observed{}, &roles.ConfError{Path: "prevResult.interfaces", Reason: fmt.Sprintf("does not list %q, the host's end of %q", l.Name, in.Key.IfName)}
	}
	return observed{Name: l.Name, MTU: l.MTU}, nil
}

// listed takes what prevResult lists, while there is no container to look into:
// the interface that one of our roles names, or the last of the host.
func listed(in *attach.Input) (o observed, err error) {
	for _, i := range in.Chained.Interfaces {
		if i.Sandbox == "" && o.Name != in.HostLink {
			o.Name = i.Name
		}
	}
	if o.Name == "" {
		return o, &roles.ConfError{Path: "prevResult.interfaces", Reason: "lists no interface of the host"}
	}
	return o, nil
}

// ethernetHeader is what a packet is longer by than the MTU.
const ethernetHeader = 14

// warn tells of limits that no full packet gets through, which the reference
// takes as well.
func (r *role) warn(h *roles.Host, mtu int) {
	for key, t := range map[string]*netops.TBF{"ingress": r.ingress, "egress": r.egress} {
		if t != nil && uint64(min(t.Burst, t.Limit)) < uint64(mtu)+ethernetHeader {
			h.Log.Warn("burst or queue is shorter than a packet, full ones will be dropped", "direction", key, "burst bytes", t.Burst, "queue bytes", t.Limit, "mtu", mtu)
		}
	}
}

// ifb is the interface that sends, at its rate, what the container sent.
func ifb(in *attach.Input) *netops.Link {
	return &netops.Link{
		In: netops.Host, Name: record.ExtraLink("ifb", in.Key), Kind: "ifb", MAC: record.MAC(in.Key, "ifb"), Up: true, Alias: record.Alias(in.Key, nil),
	}
}

// Build limits what the container receives where the host's end sends it. What it
// sends is handed to an ifb as the host's end receives it, and limited there.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("bandwidth: was not observed")
	}
	res := *in.Chained
	w := &attach.Desired{Result: &res}
	if r.ingress != nil {
		w.Spec.Add(&netops.Qdisc{In: netops.Host, Link: o.Name, Kind: "tbf", TBF: r.ingress})
	}
	if r.egress == nil {
		return w, nil
	}
	l := ifb(in)
	if l.MTU = o.MTU; in.Prev != nil {
		l = made(in, l)
	} else {
		res.Interfaces = append(slices.Clone(res.Interfaces), &roles.ResultInterface{Name: l.Name, Mac: l.MAC})
	}
	w.Spec.Add(
		l,
		&netops.Qdisc{In: netops.Host, Link: l.Name, Kind: "tbf", TBF: r.egress},
		&netops.Qdisc{In: netops.Host, Link: o.Name, Kind: "clsact"},
		&netops.Redirect{In: netops.Host, Link: o.Name, To: l.Name},
	)
	return w, nil
}

// made is what CHECK compares of the ifb: its MTU follows nobody's. Where
// prevResult lists the reference's instead, that one was made.
func made(in *attach.Input, own *netops.Link) *netops.Link {
	own.MTU = 0
	theirs := referenceIFB(in.Key)
	for _, i := range in.Prev.Interfaces {
		if i.Sandbox == "" && i.Name == theirs {
			return &netops.Link{In: netops.Host, Name: theirs, Kind: "ifb", Up: true}
		}
	}
	return own
}
