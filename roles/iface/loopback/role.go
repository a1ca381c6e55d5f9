// Package loopback is the CNI role "loopback": it brings lo up.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// lo is the only interface that the role changes, whatever CNI_IFNAME is.
const lo = "lo"

// Conf is the network configuration of the loopback role. It has no keys of its
// own.
type Conf struct{ roles.NetConf }

// Role is the loopback role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:     []string{"loopback"},
		Kind:      roles.Interface,
		Summary:   "brings the container's loopback interface up",
		Reference: "v1.10.0",
		Conf:      func() any { return new(Conf) },
		New: func(raw []byte) (roles.Handler, error) {
			if err := roles.Decode(raw, new(Conf)); err != nil {
				return nil, err
			}
			return handler{}, nil
		},
	}
}

// handler keeps no record of attachments: all state is in the container's
// namespace.
type handler struct{}

// Add brings lo up. It returns prevResult if there is one, else the addresses
// of lo.
func (handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	ns, err := open(h, req)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := onlyLoopback(ctx, h, ns); err != nil {
		return nil, err
	}
	if err := h.Net.Ensure(ctx, loSpec(), ns); err != nil {
		return nil, err
	}
	addrs, err := h.Net.Addresses(ctx, ns, lo)
	if err != nil {
		return nil, err
	}
	if req.PrevResult != nil {
		return req.PrevResult, nil
	}
	res := &roles.Result{
		CNIVersion: roles.ResultVersion,
		Interfaces: []*roles.ResultInterface{{Name: lo, Mac: "00:00:00:00:00:00", Sandbox: req.Netns}},
	}
	for _, a := range addrs {
		ip := roles.ResultIP(a, netip.Addr{})
		ip.Interface = new(int)
		res.IPs = append(res.IPs, ip)
	}
	return res, nil
}

// onlyLoopback returns an error if lo has an address that is not a loopback
// address.
func onlyLoopback(ctx context.Context, h *roles.Host, ns *netops.Namespace) error {
	addrs, err := h.Net.Addresses(ctx, ns, lo)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if !a.Addr().IsLoopback() {
			return fmt.Errorf("interface %q: %w: has the address %s, which is not a loopback address: remove the address", lo, netops.ErrConflict, a)
		}
	}
	return nil
}

// Del takes lo down. A missing namespace is not an error.
func (handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.Netns == "" {
		return nil
	}
	ns, err := h.Net.OpenNamespace(req.Netns)
	if errors.Is(err, netops.ErrNoNetns) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return h.Net.Ensure(ctx, downSpec(), ns)
}

// Check reports whether lo is up.
func (handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	ns, err := open(h, req)
	if err != nil {
		return err
	}
	defer ns.Close()
	diffs, err := h.Net.Verify(ctx, loSpec(), ns)
	if err != nil {
		return err
	}
	return roles.Differences(diffs)
}

// Plan reports the changes that Add would make.
func (handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	var ns *netops.Namespace
	if req.Netns != "" {
		var err error
		if ns, err = open(h, req); err != nil {
			return nil, err
		}
		defer ns.Close()
	}
	plan, err := h.Net.Plan(ctx, loSpec(), ns)
	return &roles.Plan{Changes: plan.Changes, Result: req.PrevResult}, err
}

func open(h *roles.Host, req *roles.Request) (*netops.Namespace, error) {
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	return ns, nil
}

func loSpec() netops.Spec {
	return netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: lo, Up: true}}}
}

func downSpec() netops.Spec {
	return netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: lo, Down: true}}}
}
