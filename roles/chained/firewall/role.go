package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the firewall role's entry in the table. Tools read its version: those
// below 1.7.1 know no policy "isolated".
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"firewall"},
		Summary:   "ingress policies, and passage through the host's firewalls",
		Reference: "v1.9.1",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants is false where everything is let in and no firewall is to be passed.
func (r *role) Wants() bool { return r.conf.IngressPolicy != open || r.conf.Backend != nftables }

// Shared is one lock: the chain of iptables is every network's.
func (r *role) Shared() []string { return []string{"firewall"} }

// observed is what Build needs to know of the kernel.
type observed struct {
	// Link is the host's device that the container is behind, "" where the
	// earlier result names none that there is, or no rule needs it.
	Link string
	// Bridge tells that the network's containers are all behind it.
	Bridge bool
	// Port is the container's port of the bridge, and Hairpin one of its flags.
	Port    string
	Hairpin bool
	// IPv4 and IPv6 tell who else decides over what is forwarded.
	IPv4, IPv6 netops.ForwardPolicy
}

func (o *observed) policy(is4 bool) *netops.ForwardPolicy {
	if is4 {
		return &o.IPv4
	}
	return &o.IPv6
}

// Observe finds who refuses to forward, and the host's side of the container.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var o observed
	var done [2]bool
	for _, ip := range in.Chained.IPs {
		p, ok := attach.Prefix(ip.Address)
		if !ok || done[family(p.Addr().Is4())] {
			continue
		}
		done[family(p.Addr().Is4())] = true
		policy, err := h.Net.ForwardPolicy(ctx, p.Addr().Is6())
		if err != nil {
			return err
		}
		r.tell(ctx, h, in, &policy)
		*o.policy(p.Addr().Is4()) = policy
	}
	if r.needsLink(&o) {
		if err := o.links(ctx, h, in.Chained); err != nil {
			return err
		}
		if container == nil && o.Link == "" {
			o.planned(in.Chained)
		}
	}
	in.Observed = o
	return nil
}

// needsLink tells whether there will be a rule that names the host's device. Where
// nobody refuses to forward, and everything is let in, there is none.
func (r *role) needsLink(o *observed) bool {
	if r.conf.IngressPolicy != open || r.conf.Backend == iptables {
		return true
	}
	refused := func(p netops.ForwardPolicy) bool { return p.Refused || p.RefusedLegacy }
	return r.conf.accepts(iptables) && (refused(o.IPv4) || refused(o.IPv6))
}

// tell says what stays dropped. Rules that firewalld left in the kernel when it
// was killed drop too, and nobody can be told of the container then.
func (r *role) tell(ctx context.Context, h *roles.Host, in *attach.Input, p *netops.ForwardPolicy) {
	if r.conf.Backend == auto && p.Firewalld {
		if err := h.Net.Firewalld(ctx); err != nil {
			p.Firewalld = false
			h.Log.Warn("rules of firewalld drop what it does not know, and it does not answer", "network", in.Key.Network, "error", err)
		}
	}
	if r.conf.Backend == nftables && in.Prev == nil && (p.Refused || p.RefusedLegacy || p.Firewalld) {
		h.Log.Warn("another firewall drops what it does not know, and backend \"nftables\" does not tell it", "network", in.Key.Network)
	}
}

// Status tells whether the firewall that was asked for answers, and in the log
// of other nftables firewalls that drop by policy: what they accept is said in
// them, and no rule of ours passes them.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	others, err := h.Net.ForwardDrops(ctx)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		h.Log.Warn("nftables chains drop what the host forwards unless they accept it themselves", "chains", strings.Join(others, ", "))
	}
	if r.conf.Backend != firewalld {
		return nil
	}
	if err := h.Net.Firewalld(ctx); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

func family(is4 bool) int {
	if is4 {
		return 0
	}
	return 1
}

// links finds the device that the container's packets enter the host's routing
// by: of the result's interfaces of the host the last that is no bridge's port.
// The bridge's gateway on a VLAN is an interface of its own and listed last.
func (o *observed) links(ctx context.Context, h *roles.Host, res *roles.Result) error {
	for _, i := range res.Interfaces {
		if i == nil || i.Sandbox != "" || i.Name == "" {
			continue
		}
		l, err := h.Net.Link(ctx, nil, i.Name)
		switch {
		case errors.Is(err, netops.ErrNotExist), errors.Is(err, netops.ErrInvalid):
			continue
		case err != nil:
			return err
		case l.Kind == "ifb":
			// Of a chained plugin: it sends on what the container sent, and leads nowhere.
		case l.Master != "":
			o.Port, o.Hairpin = l.Name, l.Hairpin
			if o.Link == "" {
				o.Link, o.Bridge = l.Master, true
			}
		default:
			o.Link, o.Bridge = l.Name, o.Bridge || l.Kind == "bridge"
		}
	}
	return nil
}

// planned takes the result's word where nothing is made yet: bridge names itself
// first and then its port, ptp the host's end of the pair.
func (o *observed) planned(res *roles.Result) {
	hosts := slices.DeleteFunc(slices.Clone(res.Interfaces), func(i *roles.ResultInterface) bool { return i == nil || i.Sandbox != "" })
	if len(hosts) > 0 {
		o.Link, o.Bridge = hosts[0].Name, len(hosts) > 1
	}
}

// pattern is the device, or where each container has one of its own, all that
// are named as these are; "" where no name tells them.
func (o *observed) pattern() string {
	if o.Bridge {
		return o.Link
	}
	if strings.HasPrefix(o.Link, "veth") {
		return "veth*"
	}
	return ""
}
