package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// allocator returns an allocator for the source's addresses without the host's own, and the
// addresses that req requests. A nil req requests none.
func (a *handler) allocator(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) (*leasing.Allocator, []leasing.AddressRequest, error) {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	return a.allocatorOn(req, source, links)
}

func (a *handler) allocatorOn(req *roles.Request, source *store.CloudSource, links []netops.LinkInfo) (*leasing.Allocator, []leasing.AddressRequest, error) {
	p, why := a.planOf(source, links)
	for i, s := range p.Sets {
		if len(s) == 0 {
			return nil, nil, fmt.Errorf("%w: %s gives this node no IPv%d address for pods%s", roles.ErrExhausted, source.Name, version(a.bits[i]), why)
		}
	}
	alloc := &leasing.Allocator{Plan: p, Life: a.life}
	if req == nil {
		return alloc, nil, nil
	}
	requests, err := p.AddressRequests(req)
	return alloc, requests, err
}

// allocate allocates addresses. Reading all links and addresses of a host with many pods takes longer
// than the rest of the call. Therefore, if all NICs can be used, it compares only the chosen
// addresses with the host's.
func (a *handler) allocate(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) ([]leasing.Grant, error) {
	links, err := a.relevantLinks(ctx, h, source)
	if err != nil {
		return nil, err
	}
	alloc, requests, err := a.allocatorOn(req, source, links)
	if err != nil {
		return nil, err
	}
	grants, err := alloc.Allocate(ctx, h, req, requests)
	if err != nil || !slices.ContainsFunc(grants, func(g leasing.Grant) bool { return a.mayBeOwn(ctx, h, g) }) {
		return grants, err
	}
	if grants, err = a.reallocate(ctx, h, req, source, grants); err != nil {
		_, undone := leasing.Release(context.WithoutCancel(ctx), h, req)
		return nil, errors.Join(err, undone)
	}
	return grants, nil
}

// reallocate replaces addresses that the host itself has. After an error some leases may remain.
func (a *handler) reallocate(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource, grants []leasing.Grant) ([]leasing.Grant, error) {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	own := ownAddresses(source, links)
	if !slices.ContainsFunc(grants, func(g leasing.Grant) bool { return own[g.Address()] }) {
		return grants, nil // there is no route to the address for another reason
	}
	alloc, requests, err := a.allocatorOn(req, source, links)
	if err != nil {
		return nil, err
	}
	if _, err := leasing.Release(ctx, h, req); err != nil {
		return nil, err
	}
	return alloc.Allocate(ctx, h, req, requests)
}

// relevantLinks reads the links of the host that the configuration needs. If only one NIC has
// addresses it returns nil, which skips the check of NICs.
func (a *handler) relevantLinks(ctx context.Context, h *roles.Host, source *store.CloudSource) ([]netops.LinkInfo, error) {
	if isName(a.nic) {
		l, err := h.Net.Link(ctx, nil, a.nic)
		if err != nil {
			return nil, fmt.Errorf("ipam.nic: %w", err)
		}
		return []netops.LinkInfo{l}, nil
	}
	usable := 0
	for i := range source.NICs {
		if source.NICs[i].Usable() {
			usable++
		}
	}
	if a.nic == "" && usable == 1 {
		return nil, nil
	}
	return h.Net.Links(ctx, nil)
}

// mayBeOwn reports whether the host may have the address itself, because packets to it do not leave
// the host.
func (a *handler) mayBeOwn(ctx context.Context, h *roles.Host, g leasing.Grant) bool {
	return h.Net.CheckRoute(ctx, nil, g.Address()) != nil
}

// hasSpare reports whether a source has an address for another attachment. It returns true if this
// is unknown: the allocation returns the error.
func (a *handler) hasSpare(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) bool {
	links, err := a.relevantLinks(ctx, h, source)
	if err != nil {
		return true
	}
	alloc, _, err := a.allocatorOn(nil, source, links)
	if err == nil {
		err = alloc.Status(ctx, h, req)
	}
	return !errors.Is(err, roles.ErrExhausted)
}
