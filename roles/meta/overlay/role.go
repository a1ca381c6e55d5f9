// Package overlay is the CNI role vxlan, also called flannel. It attaches pods to a network that
// spans nodes, with addresses of this node's part of it. The role makes no interface itself. It
// reads this node's subnets from the agent's or flanneld's file and delegates to the bridge role
// with host-local, or to the configured plugins.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Role returns the overlay's entry in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"vxlan", "flannel"},
		Kind:         roles.Meta,
		Summary:      "connects pods on different nodes; needs the agent or flanneld",
		Reference:    "v1.10.0",
		Capabilities: []string{"portMappings", "ips", "mac", "bandwidth", "dns"},
		Conf:         func() any { return new(Conf) },
		New: func(raw []byte) (roles.Handler, error) {
			c, err := decode(raw)
			if err == nil {
				err = c.Validate()
			}
			if err != nil {
				return nil, err
			}
			return &handler{c}, nil
		},
		Undo: func(raw []byte) (roles.Handler, error) {
			c, err := decode(raw)
			if err != nil && !errors.Is(err, roles.ErrConf) {
				return nil, err
			}
			return &handler{c}, nil
		},
	}
}

// handler implements the verbs for one configuration.
type handler struct{ conf *Conf }

// Add runs ADD of the delegate.
func (o *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	node, err := o.conf.readNode(h)
	if err != nil {
		return nil, err
	}
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return nil, err
	}
	if err := o.conf.record(ctx, h, req); err != nil {
		return nil, err
	}
	result, err := h.Delegate.Add(ctx, o.conf.delegateType(), req)
	if err != nil {
		return nil, err
	}
	if err := o.conf.awaitEgress(ctx, h, req, node); err != nil {
		del := *req
		del.Verb, del.PrevResult = roles.Del, result
		return nil, errors.Join(err, h.Delegate.Del(ctx, o.conf.delegateType(), &del))
	}
	return result, nil
}

// Plan returns the delegate's plan. It uses placeholder networks if the node's subnets are not
// known yet.
func (o *handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	node, unknown := o.conf.readNode(h)
	if unknown != nil {
		node = placeholder()
	}
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return nil, err
	}
	p, err := h.Delegate.Plan(ctx, o.conf.delegateType(), req)
	if err == nil && unknown != nil {
		p.Placeholder, p.Notes = true, append(p.Notes, "ADD would fail now: "+unknown.Error())
	}
	return p, err
}

// placeholder returns a node in a network for documentation (RFC 5737).
func placeholder() *store.Overlay {
	network := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 0}), 24)
	return &store.Overlay{MTU: 1450, IPMasq: true, IPv4: &store.OverlayFamily{Networks: []netip.Prefix{network}, Subnet: network}}
}

// renderRequest replaces the request's configuration with the delegate's.
func (o *handler) renderRequest(ctx context.Context, h *roles.Host, req *roles.Request, node *store.Overlay) error {
	var former []netip.Prefix
	if req.Verb == roles.Add {
		var err error
		former, err = store.Read(ctx, h.Store, func(tx *store.Tx) ([]netip.Prefix, error) { return attachment.SharedSubnets(tx, o.conf.Name) })
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	raw, err := o.conf.render(req.Conf, node, former)
	req.Conf = raw
	return err
}

// Check runs CHECK of the delegate.
func (o *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	node, err := o.conf.readNode(h)
	if err != nil {
		return err
	}
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return err
	}
	return h.Delegate.Check(ctx, o.conf.delegateType(), req)
}

// Del runs DEL of the delegate. It works without the node's subnets.
func (o *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if done, err := o.conf.delScratch(ctx, h, req); done || err != nil {
		return err
	}
	done, err := o.conf.delRecorded(ctx, h, req)
	switch {
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrSchema):
		h.Log.Warn("DEL uses the present configuration, because that of ADD cannot be read", "container", req.ContainerID, "ifname", req.IfName, "error", err)
	case done || err != nil || !o.conf.inProcess(h, req):
		return err // the third-party plugin was never called, or its DEL is complete
	}
	node := o.readNodeOrNil(h)
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return err
	}
	req.Partial = node == nil
	return h.Delegate.Del(ctx, o.conf.delegateType(), req)
}

// readNodeOrNil returns the node's subnets, or nil if they are not available.
func (o *handler) readNodeOrNil(h *roles.Host) *store.Overlay {
	node, err := o.conf.readNode(h)
	if err != nil {
		h.Log.Debug("continuing without this node's subnets", "error", err)
		return nil
	}
	return node
}

// GC runs GC of the delegate and deletes the records of containers that no longer exist.
func (o *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := o.conf.gcRecorded(ctx, h, req); err != nil {
		return err
	}
	node := o.readNodeOrNil(h)
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return err
	}
	req.Partial = node == nil
	if err := h.Delegate.GC(ctx, o.conf.delegateType(), req); err != nil {
		return err
	}
	return o.conf.collectScratch(req)
}

// Status checks that the node's subnets are available and then runs STATUS of the delegate.
func (o *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	node, err := o.conf.readNode(h)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	if err := o.renderRequest(ctx, h, req, node); err != nil {
		return err
	}
	return h.Delegate.Status(ctx, o.conf.delegateType(), req)
}
