package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
)

// Check compares the kernel with what ADD would make from prevResult.
func (a *Handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is required for CHECK"}
	}
	ns, err := openNamespace(h, req)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	rec, err := recovery.Attachment(ctx, h, req.Key())
	if err != nil {
		return err
	}
	if a.ipam != "" {
		if err := h.Delegate.Check(ctx, a.ipam, req); err != nil {
			return err
		}
	}
	if rec != nil && rec.Imported {
		diffs, err := attachment.Verify(ctx, h, rec, ns)
		if err != nil {
			return err
		}
		return roles.Differences(diffs)
	}
	in := a.newInput(req)
	in.Prev = req.PrevResult
	brings := bringsAddresses(a.role)
	if brings && len(req.PrevResult.IPs) > 0 || !brings && a.ipam != "" {
		in.IPAM, err = IPAMPart(req.PrevResult, req.IfName)
		if err != nil {
			return err
		}
	}
	byReference := false
	if rec == nil {
		if byReference, err = madeByReference(ctx, h, req, in, ns); err != nil {
			return err
		}
	}
	takeMACs(in, req.PrevResult, req.IfName)
	if err := a.role.Observe(ctx, h, in, ns); err != nil {
		return err
	}
	w, err := a.role.Build(in)
	if err != nil {
		return err
	}
	if err := expectMTUs(&w.Spec, in, rec); err != nil {
		return err
	}
	var missing []netops.Difference
	if byReference {
		if missing, err = a.checkReference(ctx, h, req, &w.Spec); err != nil {
			return err
		}
	}
	return compare(ctx, h, req, w.Spec, ns, missing)
}

// compare returns the differences from a Spec, after those in missing.
func compare(ctx context.Context, h *roles.Host, req *roles.Request, spec netops.Spec, ns *netops.Namespace, missing []netops.Difference) error {
	if req.Compared != nil {
		req.Compared.Add(spec.Objects...)
	}
	diffs, err := h.Net.Verify(ctx, spec, ns)
	if err != nil {
		return err
	}
	return roles.Differences(append(missing, diffs...))
}

// IPAMPart returns the part of a result that the IPAM plugin returned: the addresses of
// the container's interface, the routes and DNS. As in the reference plugins, an address
// without an interface, or with one that the result does not list, is the container's.
func IPAMPart(prev *roles.Result, ifName string) (*roles.Result, error) {
	out := &roles.Result{CNIVersion: prev.CNIVersion, Routes: prev.Routes, DNS: prev.DNS}
	for _, ip := range prev.IPs {
		n := -1
		if ip.Interface != nil {
			n = *ip.Interface
		}
		if n < 0 || n >= len(prev.Interfaces) {
			out.IPs = append(out.IPs, ip)
			continue
		}
		if prev.Interfaces[n].Name == ifName && prev.Interfaces[n].Sandbox != "" {
			out.IPs = append(out.IPs, ip)
		}
	}
	if len(out.IPs) == 0 {
		return nil, &roles.ConfError{Path: "prevResult.ips", Reason: fmt.Sprintf("contains no address of interface %q", ifName)}
	}
	return out, nil
}

// takeMACs replaces the derived MACs by those of prevResult, because chained plugins may
// have changed them.
func takeMACs(in *Input, prev *roles.Result, ifName string) {
	in.ContainerMAC = cmp.Or(ContainerMAC(prev, ifName), in.ContainerMAC)
	for _, i := range prev.Interfaces {
		if i != nil && i.Name == in.HostLink && i.Sandbox == "" && i.Mac != "" {
			in.HostMAC = i.Mac
		}
	}
}

// ContainerMAC returns the MAC of the container's interface in a result, or "".
func ContainerMAC(r *roles.Result, ifName string) string {
	if i := ContainerInterface(r, ifName); i != nil {
		return i.Mac
	}
	return ""
}

// ContainerMTU returns the MTU of the container's interface in a result, or 0.
func ContainerMTU(r *roles.Result, ifName string) int {
	if i := ContainerInterface(r, ifName); i != nil {
		return i.Mtu
	}
	return 0
}

// ContainerInterface returns the container's interface in a result, or nil.
func ContainerInterface(r *roles.Result, ifName string) *roles.ResultInterface {
	for _, i := range r.Interfaces {
		if i != nil && i.Name == ifName && i.Sandbox != "" {
			return i
		}
	}
	return nil
}

// Addressless reports whether ADD's result will have no address.
func (a *Handler) Addressless() bool { return a.ipam == "" }

// Status returns the role's own status and that of the IPAM plugin. It fails too if ADD cannot write
// the state file.
func (a *Handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	defer restoreRules(ctx, h)
	errs := []error{status(ctx, h, a.role)}
	if err := h.Store.CheckRunDir(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", roles.ErrNotAvailable, err))
	}
	if a.ipam != "" {
		errs = append(errs, h.Delegate.Status(ctx, a.ipam, req))
	}
	return errors.Join(errs...)
}

// KindStatus returns an error for STATUS if the kernel cannot make links of a kind.
func KindStatus(ctx context.Context, h *roles.Host, kind string) error {
	if err := h.Net.HasKind(ctx, kind); errors.Is(err, netops.ErrNotSupported) {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

// status calls the role's method Status, if it has one.
func status(ctx context.Context, h *roles.Host, role SpecBuilder) error {
	s, ok := role.(interface {
		Status(context.Context, *roles.Host) error
	})
	if !ok {
		return nil
	}
	return s.Status(ctx, h)
}

// Plan returns what Add would do, with the addresses of Preview. An empty req.Netns means
// an empty namespace.
func (a *Handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	in := a.newInput(req)
	in.Netns = cmp.Or(req.Netns, "container") // an interface without a sandbox is on the host
	in.Chained = req.PrevResult
	var unknown error
	if a.ipam != "" {
		in.IPAM, unknown = h.Delegate.Preview(ctx, a.ipam, req)
		if unknown != nil && !errors.Is(unknown, roles.ErrUnplanned) {
			return nil, unknown
		}
	}
	p, err := plan(ctx, h, req, a.role, in)
	if err == nil && unknown != nil {
		p.Placeholder, p.Notes = true, []string{"the addresses are placeholders: " + unknown.Error()}
	}
	return p, err
}

// plan computes what a role would do.
func plan(ctx context.Context, h *roles.Host, req *roles.Request, role SpecBuilder, in *Input) (*roles.Plan, error) {
	var ns *netops.Namespace
	if req.Netns != "" {
		var err error
		if ns, err = openNamespace(h, req); err != nil {
			return nil, err
		}
		defer ns.Close()
	}
	p, err := (&work{role: role, h: h, req: req, in: in, ns: ns}).plan(ctx)
	if err != nil {
		return nil, err
	}
	return &roles.Plan{Changes: p.Changes, Result: p.desired.Result}, nil
}
