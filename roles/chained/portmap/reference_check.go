package portmap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/leftovers"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// checkForeignPorts returns an error if the reference plugin forwards one of
// the ports to another container, or kube-proxy to a Service. Their rules are evaluated
// before or after ours, so one of both would get no connections. Rules for the same
// container are accepted: they come from its other network or an earlier
// attachment, and forward to it too.
func checkForeignPorts(ctx context.Context, h *roles.Host, in *attach.Input, ports []port) error {
	for _, v4 := range []bool{true, false} {
		if !slices.ContainsFunc(ports, func(p port) bool { return p.to.Is4() == v4 }) {
			continue
		}
		var numbered map[string][]port // ports of the family by number, built on first use
		of := func(proto string, n uint16) []port {
			if numbered == nil {
				numbered = byNumber(ports, v4)
			}
			return numbered[proto+strconv.Itoa(int(n))]
		}
		held, err := leftovers.Of(h.Net).Ports(ctx, !v4, func(proto string, n uint16) bool { return len(of(proto, n)) > 0 })
		if err != nil {
			return err
		}
		for _, f := range held {
			meets := func(p port) bool { return overlap(p.ip, f.Node) }
			if f.NodePort && slices.ContainsFunc(of(f.Proto, f.Port), meets) {
				return fmt.Errorf("port %d/%s: %w by a Service as its NodePort (kube-proxy, %s): use another hostPort, or change the Service",
					f.Port, f.Proto, store.ErrTaken, f.Chain)
			}
			if f.ContainerID != in.Key.ContainerID && slices.ContainsFunc(of(f.Proto, f.Port), meets) {
				return fmt.Errorf("port %d/%s: %w by container %q, which the reference plugin attached (%s): detach that container, or delete its rules there if it no longer exists",
					f.Port, f.Proto, store.ErrTaken, f.ContainerID, f.Chain)
			}
		}
	}
	return nil
}

// byNumber groups the ports of one family by protocol and number ("tcp80").
func byNumber(ports []port, v4 bool) map[string][]port {
	all := map[string][]port{}
	for _, p := range ports {
		if p.to.Is4() == v4 {
			at := p.protocol + strconv.Itoa(p.port)
			all[at] = append(all[at], p)
		}
	}
	return all
}

// CheckReference requires that the reference plugin's rules cover at least as
// many ports as are mapped, and that its sysctl for loopback addresses is set.
func (r *role) CheckReference(ctx context.Context, h *roles.Host, in *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.Sysctl)
		return !is
	})
	e, err := containerTargets(in)
	if err != nil {
		return nil, err
	}
	f, err := attachment.ByReference(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	var diffs []netops.Difference
	for _, v4 := range []bool{true, false} {
		ports := slices.DeleteFunc(r.conf.ports(e), func(p port) bool { return p.to.Is4() != v4 })
		if len(ports) == 0 {
			continue
		}
		have, err := leftovers.Of(h.Net).HostPorts(ctx, f, !v4)
		if err != nil {
			return nil, err
		}
		if have < len(ports) {
			d := leftovers.AddressDifference(in.Key.IfName, ports[0].to, "")
			d.Want, d.Have = fmt.Sprintf("the reference plugin's rules for %d ports", len(ports)), fmt.Sprintf("those for %d", have)
			diffs = append(diffs, d)
		}
	}
	return diffs, nil
}

// CollectReference removes the reference plugin's chains of containers that no
// longer exist. The rules of its nftables backend do not contain the network,
// so they are removed only for containers that host-local's files list for this
// network.
func (r *role) CollectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	errs := []error{leftovers.Of(h.Net).CollectHostPorts(ctx, req.Network, attachment.ValidByReference(req))}
	there, err := leftovers.Of(h.Net).Has(ctx, netops.ReferencePluginAttachment{Network: req.Network})
	if err != nil || !there {
		return errors.Join(append(errs, err)...)
	}
	gone, err := h.Reference.Departed(ctx, h, req.Network, req.Valid)
	errs = append(errs, err)
	for _, f := range gone {
		f.Shares = true // CollectForeignHostPorts has removed its chains
		errs = append(errs, leftovers.Of(h.Net).RemoveHostPorts(ctx, f))
	}
	return errors.Join(errs...)
}

// removeForeign removes the rules and chains that the reference plugin made for
// the attachment.
func removeForeign(ctx context.Context, h *roles.Host, in *attach.Input) error {
	there, err := leftovers.Of(h.Net).Has(ctx, netops.ReferencePluginAttachment{Network: in.Key.Network, ContainerID: in.Key.ContainerID})
	if err != nil || !there {
		return err
	}
	f, err := attachment.ByReference(ctx, h, in.Key, in.Prev)
	if err != nil {
		return err
	}
	return leftovers.Of(h.Net).RemoveHostPorts(ctx, f)
}
