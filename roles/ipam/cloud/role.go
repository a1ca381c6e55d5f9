// Package cloud is the IPAM role cloud-ipam. It gives pods addresses of the cloud's own network
// that the cloud has assigned to this node. It also replaces azure-vnet-ipam.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/roles/ipam/cloud/feed"
	"github.com/cnibox/cnibox/store"
)

// Role returns the entry of the IPAM role cloud-ipam in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{typeName, azureType},
		Kind:         roles.IPAM,
		Summary:      "addresses that the cloud gives this node for its pods",
		Capabilities: []string{"ips", "mac", sticky.AnnotationsCapability},
		Args:         append([]string{"IP"}, sticky.Args()...),
		Conf:         func() any { return new(Conf) },
		Ignored:      []string{"ipam.mode"},
		New: func(conf []byte) (roles.Handler, error) {
			return newHandler(conf)
		},
		Undo:  func([]byte) (roles.Handler, error) { return leasing.Undo{}, nil },
		Verbs: func() []roles.CommandVerb { return append(commands(), planVerb()) },
	}
}

// handler implements the verbs for one network configuration.
type handler struct {
	*settings
	life leasing.Liveness
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
	s, err := newSettings(c)
	if err != nil {
		return nil, err
	}
	return &handler{settings: s, life: leasing.NodeLiveness()}, nil
}

// Add gives an attachment one address of each family, or none after an error. See
// leasing.Allocator.Allocate. It queries the cloud first if the interval has passed.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	defer a.writeAzureState(ctx, h)
	source, err := feed.Enough(ctx, h, a.feed, func(known *store.CloudSource) bool { return a.hasSpare(ctx, h, req, known) })
	if err != nil {
		return nil, err
	}
	grants, err := a.allocate(ctx, h, req, source)
	if err != nil {
		return nil, err
	}
	return a.result(source, grants), nil
}

// Preview returns the next addresses according to the known state of the cloud. A repeated call
// returns the same.
func (a *handler) Preview(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	source, err := feed.Known(ctx, h, a.feed.Source())
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: the cloud was not queried yet: run 'cnibox cloud refresh': %w", roles.ErrUnplanned, err)
	}
	if err != nil {
		return nil, err
	}
	alloc, asks, err := a.allocator(ctx, h, req, source)
	if err != nil {
		return nil, err
	}
	grants, err := alloc.Preview(ctx, h, req, asks)
	if err != nil {
		return nil, err
	}
	return a.result(source, grants), nil
}

// result returns the result with the given addresses. Without configured routes or DNS it has those
// of the cloud.
func (a *handler) result(source *store.CloudSource, grants []leasing.Grant) *roles.Result {
	r := roles.NewResult(a.routes, a.dns)
	leasing.AddIPs(r, grants)
	if len(r.Routes) == 0 {
		r.Routes = defaultRoutes(r)
	}
	if a.dns.IsEmpty() {
		r.DNS.Nameservers = nameservers(source, grants)
	}
	return r
}

// defaultRoutes returns a default route through the gateway of each address.
func defaultRoutes(r *roles.Result) []*types.Route {
	var out []*types.Route
	for _, ip := range r.IPs {
		if ip.Gateway != nil {
			out = append(out, &types.Route{Dst: roles.IPNet(roles.DefaultDst(ip.Address.IP.To4() != nil)), GW: ip.Gateway})
		}
	}
	return out
}

// nameservers returns the name servers of the addresses' NICs.
func nameservers(source *store.CloudSource, grants []leasing.Grant) []string {
	var out []string
	for _, g := range grants {
		for _, n := range source.NICs {
			if n.MAC != g.NIC() {
				continue
			}
			for _, server := range n.DNS {
				if text := server.String(); !slices.Contains(out, text) {
					out = append(out, text)
				}
			}
		}
	}
	return out
}

// Del releases all addresses of an attachment. It does not query the cloud. An attachment without
// addresses is not an error.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	defer a.writeAzureState(ctx, h)
	_, err := leasing.Release(ctx, h, req)
	return err
}

// writeAzureState updates azure's file of the addresses.
func (a *handler) writeAzureState(ctx context.Context, h *roles.Host) {
	azureview.Write(ctx, h, &a.files, azureview.Addresses)
}

// Check verifies that the attachment has an address of each family and every cloud address of
// prevResult. It does not query the cloud: the attachment keeps an address that the cloud has
// withdrawn.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	source, err := feed.Known(ctx, h, a.feed.Source())
	if errors.Is(err, store.ErrNotFound) {
		source, err = &store.CloudSource{Name: a.feed.Source()}, nil
	}
	if err != nil {
		return err
	}
	p, _ := a.planOf(source, nil)
	return (&leasing.Allocator{Plan: p, Life: a.life}).Check(ctx, h, req)
}

// GC releases the addresses of this network whose owners are not in req.Valid. It does not request
// the cloud.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	defer a.writeAzureState(ctx, h)
	return (&leasing.Allocator{Plan: &a.plan, Life: a.life}).GC(ctx, h, req)
}

// Status returns nil if an address is available for the next ADD. If none is known to be available,
// it queries the cloud, which may have assigned more since the last query.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	source, err := feed.Known(ctx, h, a.feed.Source())
	if err == nil && a.statusOf(ctx, h, req, source) == nil {
		return nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	if source, err = feed.Current(ctx, h, a.feed); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return a.statusOf(ctx, h, req, source)
}

func (a *handler) statusOf(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) error {
	alloc, _, err := a.allocator(ctx, h, nil, source)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return alloc.Status(ctx, h, req)
}
