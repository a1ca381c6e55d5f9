package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Role is the bandwidth role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"bandwidth"},
		Summary:      "limits of rate and burst for a container's traffic",
		Reference:    "v1.10.0",
		Capabilities: []string{"bandwidth"},
	}, func(c *Conf) attach.Chained { return newRole(c) })
}

// role implements attach.Chained and attach.ReferenceCleaner for one configuration. The
// filter of a direction without a limit is nil.
type role struct {
	conf            *Conf
	ingress, egress *netops.TBF
}

// newRole reads the limits of a configuration.
func newRole(c *Conf) *role {
	l, _ := c.limits()
	return &role{conf: c, ingress: c.tbf(l.IngressRate, l.IngressBurst), egress: c.tbf(l.EgressRate, l.EgressBurst)}
}

// Wants is false without limits: ADD then changes nothing.
func (r *role) Wants() bool { return r.ingress != nil || r.egress != nil }

// Shared is empty: every object belongs to the attachment.
func (r *role) Shared() []string { return nil }

// observed is the host's end of the container's veth pair.
type observed struct {
	Name string
	MTU  int
}

// Observe finds the host's end of the veth pair. It asks the kernel, because
// prevResult may list several interfaces of the host.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var err error
	var o observed
	if container == nil {
		o, err = listedHostEnd(in)
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
		return observed{}, fmt.Errorf("limit interface %q, which must be of a pair with an end on the host: %w", in.Key.IfName, err)
	}
	if !slices.ContainsFunc(in.Chained.Interfaces, func(i *roles.ResultInterface) bool { return i.Sandbox == "" && i.Name == l.Name }) {
		return observed{}, &roles.ConfError{Path: "prevResult.interfaces", Reason: fmt.Sprintf("does not list %q, the host's end of %q", l.Name, in.Key.IfName)}
	}
	return observed{Name: l.Name, MTU: l.MTU}, nil
}

// listedHostEnd is the host's end according to prevResult, for a plan without a
// container: the name that our interface roles use, else the last interface of
// the host.
func listedHostEnd(in *attach.Input) (o observed, err error) {
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

// ethernetHeader is the number of bytes that a frame is longer than the MTU.
const ethernetHeader = 14

// warn logs limits that drop every full-sized packet. The reference plugin
// accepts such limits too.
func (r *role) warn(h *roles.Host, mtu int) {
	for key, t := range map[string]*netops.TBF{"ingress": r.ingress, "egress": r.egress} {
		if t != nil && uint64(min(t.Burst, t.Limit)) < uint64(mtu)+ethernetHeader {
			h.Log.Warn("burst or queue is shorter than a full packet: full packets will be dropped", "direction", key, "burst bytes", t.Burst, "queue bytes", t.Limit, "mtu", mtu)
		}
	}
}

// ifb is the interface that limits and transmits the packets which the
// container sent.
func ifb(in *attach.Input) *netops.Link {
	return &netops.Link{
		In: netops.Host, Name: attachment.ExtraLink("ifb", in.Key), Kind: "ifb", MAC: attachment.MAC(in.Key, "ifb"), Up: true, Alias: attachment.Alias(in.Key, nil),
	}
}

// Build limits what the container receives on the host's end of the veth pair.
// What the container sends is redirected from there to an ifb interface and
// limited on that.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
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
	l.MTU = o.MTU
	if in.Prev != nil {
		l = expectedIFB(in, l)
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

// expectedIFB is what CHECK compares with the ifb interface. The MTU is not
// compared: it does not change with the veth's. If prevResult lists the
// reference plugin's ifb interface, CHECK expects that one.
func expectedIFB(in *attach.Input, own *netops.Link) *netops.Link {
	own.MTU = 0
	theirs := referenceIFB(in.Key)
	for _, i := range in.Prev.Interfaces {
		if i.Sandbox == "" && i.Name == theirs {
			return &netops.Link{In: netops.Host, Name: theirs, Kind: "ifb", Up: true}
		}
	}
	return own
}
