package leasing

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// assign returns one request for each set, or the zero request. If no set can serve a
// request, the error names the request.
func (p *Plan) assign(requests []AddressRequest) ([]AddressRequest, error) {
	bySet := make([]AddressRequest, len(p.Sets))
	var errs []error
	for i, req := range requests {
		if slices.ContainsFunc(requests[:i], func(o AddressRequest) bool { return o.addr == req.addr }) {
			continue
		}
		if err := p.assignOne(bySet, req); err != nil {
			errs = append(errs, err)
		}
	}
	return bySet, errors.Join(errs...)
}

func (p *Plan) assignOne(bySet []AddressRequest, req AddressRequest) error {
	for i, s := range p.Sets {
		r := s.RangeOf(req.addr)
		switch {
		case r == nil:
			continue
		case bySet[i].addr.IsValid():
			return req.fault("cannot be served: %s gives one address, and %s is requested of it already", p.setName(i), bySet[i].addr)
		case req.addr == r.Gateway:
			return req.fault("is the gateway of %s", r.Subnet)
		case !r.Allows(req.addr):
			return req.fault("%s %s", p.refusal(), r.Subnet)
		}
		bySet[i] = req
		return nil
	}
	return req.fault("%s", outside(p.Sets, req.addr))
}

// refusal returns the reason why a range does not allow an address.
func (p *Plan) refusal() string {
	if p.Reuse == nil || p.Within != nil {
		return "is excluded from"
	}
	return "is not an address that the cloud gives this node for pods, of"
}

// outside returns the error text for an address outside of all ranges.
func outside(sets []Set, a netip.Addr) string {
	for _, s := range sets {
		for _, r := range s {
			switch all := Whole(r.Subnet); {
			case !all.Contains(a):
				continue
			case a.Is4() && !Hosts(r.Subnet).Contains(a) && a == all.Lo:
				return "is in no range: it is the network address of " + r.Subnet.String()
			case a.Is4() && !Hosts(r.Subnet).Contains(a):
				return "is in no range: it is the broadcast address of " + r.Subnet.String()
			}
			return fmt.Sprintf("is in no range: %s has only %s", r.Subnet, r.Bounds)
		}
	}
	return "is in no range"
}
