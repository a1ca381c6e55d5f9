// Package overlay is the CNI role vxlan, which also answers to flannel: pods
// with addresses of this node's part of a network that spans nodes. It makes
// nothing itself: it reads what the agent (or flanneld) tells of the node and
// has a bridge with host-local, or what is asked for, make it.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Role is the overlay's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"vxlan", "flannel"},
		Kind:         roles.Meta,
		Summary:      "pods on different nodes reach each other; reads what the agent or flanneld tells",
		Reference:    "v1.9.1",
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

// handler answers the verbs for one configuration.
type handler struct{ conf *Conf }

// Add has the delegate attach the container.
func (o *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	node, err := o.conf.readNode(h)
	if err != nil {
		return nil, err
	}
	if err := o.delegated(req, node); err != nil {
		return nil, err
	}
	if err := o.conf.keep(ctx, h, req); err != nil {
		return nil, err
	}
	return h.Delegate.Add(ctx, o.conf.delegateType(), req)
}

// Plan is the delegate's. Where nothing is told of the node yet, its networks
// are placeholders.
func (o *handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	node := o.known(h)
	if node == nil {
		node = placeholder()
	}
	if err := o.delegated(req, node); err != nil {
		return nil, err
	}
	return h.Delegate.Plan(ctx, o.conf.delegateType(), req)
}

// placeholder is a node in a network that documentation is made of (RFC 5737).
func placeholder() *store.Overlay {
	network := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 0}), 24)
	return &store.Overlay{MTU: 1450, IPMasq: true, IPv4: &store.OverlayFamily{Networks: []netip.Prefix{network}, Subnet: network}}
}

// delegated makes the request the delegate's.
func (o *handler) delegated(req *roles.Request, node *store.Overlay) error {
	raw, err := o.conf.render(req.Conf, node)
	req.Conf = raw
	return err
}

// Check passes the verb on.
func (o *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	node, err := o.conf.readNode(h)
	if err != nil {
		return err
	}
	if err := o.delegated(req, node); err != nil {
		return err
	}
	return h.Delegate.Check(ctx, o.conf.delegateType(), req)
}

// Del has the delegate detach the container. What is told of the node is not needed.
func (o *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if done, err := o.conf.delScratch(ctx, h, req); done || err != nil {
		return err
	}
	if done, err := o.conf.delKept(ctx, h, req); done || err != nil || !o.conf.inProcess(h, req) {
		return err // another program was not asked, or has done it
	}
	if err := o.delegated(req, o.known(h)); err != nil {
		return err
	}
	return h.Delegate.Del(ctx, o.conf.delegateType(), req)
}

// known is what is told of the node, or nil.
func (o *handler) known(h *roles.Host) *store.Overlay {
	node, err := o.conf.readNode(h)
	if err != nil {
		h.Log.Debug("going on without this node's subnets", "error", err)
		return nil
	}
	return node
}

// GC passes the verb on, and forgets what was kept of containers that are no more.
func (o *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := o.conf.collectKept(ctx, h, req); err != nil {
		return err
	}
	if err := o.delegated(req, o.known(h)); err != nil {
		return err
	}
	if err := h.Delegate.GC(ctx, o.conf.delegateType(), req); err != nil {
		return err
	}
	return o.conf.collectScratch(req)
}

// Status is that of the node's overlay, and then the delegate's.
func (o *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	node, err := o.conf.readNode(h)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	if err := o.delegated(req, node); err != nil {
		return err
	}
	return h.Delegate.Status(ctx, o.conf.delegateType(), req)
}
