package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the firewall role's entry in the table. Tools read its version: those
// below 1.7.1 know no policy "isolated".
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"firewall"},
		Summary:   "ingress policies, and rules that let the host's firewalls accept the traffic",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants is false if the policy accepts all traffic and no other firewall has to
// be opened.
func (r *role) Wants() bool { return r.conf.IngressPolicy != open || r.conf.Backend != nftables }

// Shared is one lock for all networks: they use the same iptables chain.
func (r *role) Shared() []string { return []string{"firewall"} }

// observed is the kernel state that Build needs.
type observed struct {
	// Link is the host's device of the route to the container. It is "" if
	// prevResult has no existing device, or if no rule needs it.
	Link string
	// Bridge reports that Link is a bridge that all containers of the network
	// are connected to.
	Bridge bool
	// Port is the container's port of the bridge. Hairpin is the port's hairpin
	// flag.
	Port    string
	Hairpin bool
	// IPv4 and IPv6 are the decisions of other firewalls about forwarded
	// packets.
	IPv4, IPv6 netops.ForwardPolicy
}

func (o *observed) policy(is4 bool) *netops.ForwardPolicy {
	if is4 {
		return &o.IPv4
	}
	return &o.IPv6
}

// Observe reads which other firewalls drop forwarded packets, and the host's
// device of the container.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var o observed
	var read [2]bool
	for _, ip := range in.Chained.IPs {
		p, ok := attach.Prefix(ip.Address)
		if !ok || read[familyIndex(p.Addr().Is4())] {
			continue
		}
		read[familyIndex(p.Addr().Is4())] = true
		policy, err := h.Net.FilterTables().Policy(ctx, p.Addr().Is6())
		if err != nil {
			return err
		}
		r.warn(ctx, h, in, &policy)
		if err := r.readAdmin(ctx, h, in, p.Addr().Is6(), &policy); err != nil {
			return err
		}
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

// readAdmin makes ADD add the rules in iptables' filter table if the administrator's chain
// has rules, because they jump to it. CHECK does not: the administrator may have added the
// first rule since ADD. Where firewalld decides, the reference plugin does not use the
// chain either.
func (r *role) readAdmin(ctx context.Context, h *roles.Host, in *attach.Input, is6 bool, p *netops.ForwardPolicy) error {
	if !r.conf.usesBackend(iptables) || in.Prev != nil || p.Firewalld {
		return nil
	}
	native, legacy, err := h.Net.FilterTables().AdminRules(ctx, is6, r.conf.IptablesAdminChainName)
	p.Refused, p.RefusedLegacy = p.Refused || native, p.RefusedLegacy || legacy
	return err
}

// needsLink reports whether a rule will name the host's device. If no firewall
// drops forwarded packets, the administrator has no rules, and the policy accepts
// all traffic, there is no such rule.
func (r *role) needsLink(o *observed) bool {
	if r.conf.IngressPolicy != open || r.conf.Backend == iptables {
		return true
	}
	refused := func(p netops.ForwardPolicy) bool { return p.Refused || p.RefusedLegacy }
	return r.conf.usesBackend(iptables) && (refused(o.IPv4) || refused(o.IPv6))
}

// warn logs that another firewall will drop the container's traffic. If firewalld was
// killed, its rules stay in the kernel and drop packets, but it cannot add the container.
func (r *role) warn(ctx context.Context, h *roles.Host, in *attach.Input, p *netops.ForwardPolicy) {
	if r.conf.Backend == auto && p.Firewalld {
		if err := h.Net.Firewalld(ctx); err != nil {
			p.Firewalld = false
			h.Log.Warn("firewalld's rules drop unknown traffic, and firewalld does not answer", "network", in.Key.Network, "error", err)
		}
	}
	if r.conf.Backend == nftables && in.Prev == nil && (p.Refused || p.RefusedLegacy || p.Firewalld) {
		h.Log.Warn("another firewall drops unknown traffic, and backend \"nftables\" adds no rules to it", "network", in.Key.Network)
	}
}

// Status reports whether the configured firewall answers. It also logs other
// nftables chains that drop forwarded packets by policy: only rules in those
// chains can accept packets, so cnibox cannot.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	others, err := h.Net.FilterTables().ForwardDrops(ctx)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		h.Log.Warn("nftables chains drop forwarded packets that their own rules do not accept", "chains", strings.Join(others, ", "))
	}
	if r.conf.Backend != firewalld {
		return nil
	}
	if err := h.Net.Firewalld(ctx); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

func familyIndex(is4 bool) int {
	if is4 {
		return 0
	}
	return 1
}

// links finds the device through which the container's packets enter the host:
// the last of the result's interfaces of the host that is not a bridge port.
// With a VLAN the bridge's gateway interface is listed last and is found.
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
			// It belongs to the bandwidth role: it only forwards what the
			// container sent.
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

// planned takes the device from the result for a plan, when no interface exists
// yet. The bridge role lists the bridge before its port; ptp lists the host's
// end of the veth pair.
func (o *observed) planned(res *roles.Result) {
	hosts := slices.DeleteFunc(slices.Clone(res.Interfaces), func(i *roles.ResultInterface) bool { return i == nil || i.Sandbox != "" })
	if len(hosts) > 0 {
		o.Link, o.Bridge = hosts[0].Name, len(hosts) > 1
	}
}

// pattern is the name of the bridge, or, if each container has its own
// interface, the pattern of their names. It is "" if the names have no common
// pattern.
func (o *observed) pattern() string {
	if o.Bridge {
		return o.Link
	}
	if strings.HasPrefix(o.Link, "veth") {
		return "veth*"
	}
	return ""
}
