package static

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role returns the entry of the IPAM role static in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"static"},
		Kind:         roles.IPAM,
		Summary:      "addresses from the configuration or the runtime",
		Reference:    "v1.10.0",
		Capabilities: []string{"ips"},
		Args:         []string{"IP", "GATEWAY"},
		Conf:         func() any { return new(Conf) },
		New:          func(conf []byte) (roles.Handler, error) { return newHandler(conf) },
		Undo:         func([]byte) (roles.Handler, error) { return &handler{}, nil },
	}
}

// handler implements the verbs for one network configuration. It has no GC and no STATUS, because
// there are no records, and addresses cannot run out.
type handler struct{ plan *plan }

var (
	_ roles.Checker   = (*handler)(nil)
	_ roles.Previewer = (*handler)(nil)
)

func newHandler(conf []byte) (*handler, error) {
	c := new(Conf)
	if err := roles.Decode(conf, c); err != nil {
		return nil, err
	}
	p, err := newPlan(c)
	if err != nil {
		return nil, err
	}
	return &handler{plan: p}, nil
}

// Add returns the addresses. A repeated call returns the same.
func (a *handler) Add(_ context.Context, _ *roles.Host, req *roles.Request) (*roles.Result, error) {
	addrs, err := a.plan.addresses(req.Args)
	if err != nil {
		return nil, err
	}
	r := roles.NewResult(a.plan.routes, a.plan.dns)
	for _, addr := range addrs {
		r.IPs = append(r.IPs, roles.ResultIP(addr.Prefix, addr.gateway))
	}
	return r, nil
}

// Preview is Add: it reserves nothing.
func (a *handler) Preview(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	return a.Add(ctx, h, req)
}

// Del has nothing to undo.
func (a *handler) Del(context.Context, *roles.Host, *roles.Request) error { return nil }

// Check compares prevResult with the result of ADD: prevResult must have every address with its
// prefix length, and its gateway if one is configured.
func (a *handler) Check(_ context.Context, _ *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is required for CHECK"}
	}
	addrs, err := a.plan.addresses(req.Args)
	if err != nil {
		return err
	}
	have, err := attach.Addresses(req.PrevResult)
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range addrs {
		i := slices.IndexFunc(have, func(ip attach.IPConfig) bool { return ip.Address == want.Prefix })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("%w: prevResult has no address %s", roles.ErrCheck, want))
		case want.gateway.IsValid() && have[i].Gateway != want.gateway:
			errs = append(errs, fmt.Errorf("%w: prevResult has the gateway %q for %s, want %s", roles.ErrCheck, req.PrevResult.IPs[i].Gateway, want, want.gateway))
		}
	}
	return errors.Join(errs...)
}
