// Package hostlocal is the IPAM role host-local: addresses from ranges, with leases in this node's
// store. Its results are those of the reference plugin, and it imports that plugin's files.
package hostlocal

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
)

// Role returns the entry of the IPAM role host-local in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"host-local"},
		Kind:         roles.IPAM,
		Summary:      "addresses from ranges, kept on this node",
		Reference:    "v1.10.0",
		Capabilities: []string{"ipRanges", "ips", "mac", sticky.AnnotationsCapability},
		Args:         append([]string{"IP"}, sticky.Args()...),
		Conf:         func() any { return new(Conf) },
		New:          func(conf []byte) (roles.Handler, error) { return newHandler(conf) },
		// Undo does not import files, because the import needs the ranges.
		Undo:  func([]byte) (roles.Handler, error) { return leasing.Undo{}, nil },
		Verbs: commands,
	}
}

// handler implements the verbs for one network configuration.
type handler struct {
	*leasing.Allocator
	resolvConf string
	routes     []*types.Route
}

var (
	_ roles.Checker   = (*handler)(nil)
	_ roles.Collector = (*handler)(nil)
	_ roles.Statuser  = (*handler)(nil)
	_ roles.Previewer = (*handler)(nil)
)

func newHandler(conf []byte) (*handler, error) {
	c, err := decode(conf)
	if err != nil {
		return nil, err
	}
	return plan(c)
}

// Add gives an attachment one address of each range set, or none after an error. See
// leasing.Allocator.Allocate.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	return a.result(ctx, h, req, func(ctx context.Context, h *roles.Host, req *roles.Request, requests []leasing.AddressRequest) ([]leasing.Grant, error) {
		if !a.Mirrors(h, req.Network) { // else Allocate imports
			if err := a.importOnce(ctx, h, req.Network); err != nil {
				return nil, err
			}
		}
		return a.Allocate(ctx, h, req, requests)
	})
}

// Preview returns the next addresses. A repeated call returns the same.
func (a *handler) Preview(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	return a.result(ctx, h, req, a.Allocator.Preview)
}

// chooser gives an attachment its addresses, or only tells them.
type chooser func(context.Context, *roles.Host, *roles.Request, []leasing.AddressRequest) ([]leasing.Grant, error)

// result returns the result with the addresses of choose, which is called last.
func (a *handler) result(ctx context.Context, h *roles.Host, req *roles.Request, choose chooser) (*roles.Result, error) {
	requests, err := a.Plan.AddressRequests(req)
	if err != nil {
		return nil, err
	}
	var dns types.DNS
	if a.resolvConf != "" {
		dns, err = readResolvConf(a.resolvConf)
		if err != nil {
			return nil, err
		}
	}
	grants, err := choose(ctx, h, req, requests)
	if err != nil {
		return nil, err
	}
	r := roles.NewResult(a.routes, dns)
	leasing.AddIPs(r, grants)
	return r, nil
}
