// Package result converts CNI results between the versions of the CNI specification.
// Roles compute the newest version; runtimes and other plugins use older ones too.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
)

// Versions returns the supported versions of the CNI specification, oldest first.
func Versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", roles.ResultVersion}
}

// AtLeast reports whether v is not older than least. Both are of Versions.
func AtLeast(v, least string) bool {
	all := Versions()
	return slices.Index(all, v) >= slices.Index(all, least)
}

// Encode returns a result as JSON in the form of a version.
func Encode(r *roles.Result, version string) (json.RawMessage, error) {
	v, err := As(r, version)
	if err != nil {
		return nil, err
	}
	b, err := coldjson.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b, nil
}

// As returns a value whose JSON is the result in the form of a version.
func As(r *roles.Result, version string) (any, error) {
	r = Clone(r)
	r.CNIVersion = roles.ResultVersion
	if version != roles.ResultVersion {
		strip(r)
	}
	if AtLeast(version, "1.0.0") {
		r.CNIVersion = version
		return newDocument(r), nil
	}
	if !AtLeast(version, "0.3.0") && len(r.IPs) == 0 {
		return nil, NoAddressError(version)
	}
	old, err := r.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("result as %s: %w: %w", version, roles.ErrVersion, err)
	}
	return old, nil
}

// NoAddressError is the error for a version before 0.3.0, whose results consist of
// addresses only, and a result without an address.
func NoAddressError(version string) error {
	return fmt.Errorf("result as %s: %w: it has no form for an interface without an address; use cniVersion 0.3.0 or newer", version, roles.ErrVersion)
}

// document is a result of version 1.0.0 or 1.1.0. It exists because the library's types
// encode each part three times.
type document struct {
	CNIVersion string                   `json:"cniVersion"`
	Interfaces []*roles.ResultInterface `json:"interfaces,omitempty"`
	IPs        []ipDocument             `json:"ips,omitempty"`
	Routes     []routeDocument          `json:"routes,omitempty"`
	DNS        *types.DNS               `json:"dns,omitempty"`
}

type ipDocument struct {
	Interface *int   `json:"interface,omitempty"`
	Address   string `json:"address"`
	Gateway   net.IP `json:"gateway,omitempty"`
}

type routeDocument struct {
	Dst      string `json:"dst"`
	GW       net.IP `json:"gw,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AdvMSS   int    `json:"advmss,omitempty"`
	Priority int    `json:"priority,omitempty"`
	Table    *int   `json:"table,omitempty"`
	Scope    *int   `json:"scope,omitempty"`
}

func newDocument(r *roles.Result) *document {
	d := &document{CNIVersion: r.CNIVersion, Interfaces: r.Interfaces}
	for _, ip := range r.IPs {
		d.IPs = append(d.IPs, ipDocument{Interface: ip.Interface, Address: ip.Address.String(), Gateway: ip.Gateway})
	}
	for _, rt := range r.Routes {
		d.Routes = append(d.Routes, routeDocument{
			Dst: rt.Dst.String(), GW: rt.GW, MTU: rt.MTU, AdvMSS: rt.AdvMSS, Priority: rt.Priority, Table: rt.Table, Scope: rt.Scope,
		})
	}
	if !r.DNS.IsEmpty() {
		d.DNS = &r.DNS
	}
	return d
}

// strip removes the fields that version 1.1.0 added. The library leaves them in older
// results.
func strip(r *roles.Result) {
	for _, i := range r.Interfaces {
		i.Mtu, i.SocketPath, i.PciID = 0, "", ""
	}
	for i, rt := range r.Routes {
		r.Routes[i] = &types.Route{Dst: rt.Dst, GW: rt.GW}
	}
}

// Clone returns a deep copy without nil entries; the copy of nil is nil.
func Clone(r *roles.Result) *roles.Result {
	if r == nil {
		return nil
	}
	out := &roles.Result{CNIVersion: r.CNIVersion, DNS: *r.DNS.Copy()}
	for _, i := range r.Interfaces {
		if i != nil {
			out.Interfaces = append(out.Interfaces, i.Copy())
		}
	}
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		c := ip.Copy()
		c.Address.IP, c.Address.Mask = slices.Clone(c.Address.IP), slices.Clone(c.Address.Mask)
		c.Gateway = slices.Clone(c.Gateway)
		out.IPs = append(out.IPs, c)
	}
	for _, rt := range r.Routes {
		if rt == nil {
			continue
		}
		c := rt.Copy()
		c.Dst.IP, c.Dst.Mask = slices.Clone(c.Dst.IP), slices.Clone(c.Dst.Mask)
		c.GW = slices.Clone(c.GW)
		out.Routes = append(out.Routes, c)
	}
	return out
}

// DecodePrev decodes prevResult in the configuration's version. It returns nil if
// prevResult is absent. Runtimes send it in versions older than 0.3.0 too, which have no
// plugin lists. An address' interface may be one that the result does not list: see attach.IPAMPart.
func DecodePrev(version string, raw json.RawMessage) (*roles.Result, error) {
	if absent(raw) {
		return nil, nil
	}
	r, err := decode(version, version, raw)
	if err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	return r, nil
}

// Decode decodes what a plugin printed after ADD, in the version that the result states.
// It drops an address' interface that the result does not list: IPAM plugins must not
// refer to interfaces, and some do.
func Decode(confVersion string, raw json.RawMessage) (*roles.Result, error) {
	if absent(raw) && len(raw) > 0 {
		return &roles.Result{CNIVersion: roles.ResultVersion}, nil
	}
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, fmt.Errorf("result: %w: %w", roles.ErrDecode, roles.Mismatch(err))
	}
	if v.CNIVersion == "" {
		v.CNIVersion = confVersion
	}
	r, err := decode(v.CNIVersion, confVersion, raw)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	for _, ip := range r.IPs {
		if ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)) {
			ip.Interface = nil
		}
	}
	return r, nil
}

// decode decodes a result of one version into the newest form. A result without a
// version has the configuration's version.
func decode(version, confVersion string, raw json.RawMessage) (*roles.Result, error) {
	if r := decodePlain(version, raw); r != nil {
		return r, nil
	}
	return decodeAny(version, confVersion, raw)
}

// decodeAny decodes a result with the library.
func decodeAny(version, confVersion string, raw json.RawMessage) (*roles.Result, error) {
	fail := func(err error) (*roles.Result, error) { return nil, fmt.Errorf("%w: %w", roles.ErrDecode, err) }
	if err := checkShape(raw); err != nil {
		return fail(err)
	}
	raw, err := withVersion(confVersion, raw)
	if err != nil {
		return fail(err)
	}
	old, err := create.Create(version, raw)
	if err != nil {
		return fail(err)
	}
	r, err := types100.NewResultFromResult(old)
	if err != nil {
		return fail(err)
	}
	r.CNIVersion = roles.ResultVersion
	for i, ip := range r.IPs {
		if ip.Address.IP == nil {
			return fail(fmt.Errorf("ips[%d].address is missing", i))
		}
	}
	return r, nil
}

// decodePlain decodes a result that consists of the fields of [document], in a third of
// the library's time. It returns nil for other or invalid results.
func decodePlain(version string, raw json.RawMessage) *roles.Result {
	var d document
	if !AtLeast(version, "1.0.0") || !AtLeast(roles.ResultVersion, version) || !coldjson.UnmarshalKnown(raw, &d) || d.CNIVersion != version {
		return nil
	}
	if slices.Contains(d.Interfaces, nil) {
		return nil
	}
	r := &roles.Result{CNIVersion: roles.ResultVersion, Interfaces: d.Interfaces}
	for _, ip := range d.IPs {
		address, err := types.ParseCIDR(ip.Address)
		if err != nil {
			return nil
		}
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: ip.Interface, Address: *address, Gateway: ip.Gateway})
	}
	for _, rt := range d.Routes {
		dst, err := types.ParseCIDR(rt.Dst)
		if err != nil {
			return nil
		}
		r.Routes = append(r.Routes, &types.Route{
			Dst: *dst, GW: rt.GW, MTU: rt.MTU, AdvMSS: rt.AdvMSS, Priority: rt.Priority, Table: rt.Table, Scope: rt.Scope,
		})
	}
	if d.DNS != nil {
		r.DNS = *d.DNS
	}
	return r
}

// checkShape refuses null entries, on which the library panics.
func checkShape(raw json.RawMessage) error {
	var lists struct {
		Interfaces []*json.RawMessage `json:"interfaces"`
		IPs        []*json.RawMessage `json:"ips"`
		Routes     []*json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal(raw, &lists); err != nil {
		return roles.Mismatch(err)
	}
	for _, l := range [][]*json.RawMessage{lists.Interfaces, lists.IPs, lists.Routes} {
		if slices.Contains(l, nil) {
			return errors.New("interfaces, ips and routes may not have null entries")
		}
	}
	return nil
}

// withVersion adds the configuration's version to a result without a version.
func withVersion(version string, raw json.RawMessage) (json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if v := m["cniVersion"]; m == nil || (!absent(v) && string(v) != `""`) {
		return raw, nil
	}
	m["cniVersion"] = json.RawMessage(`"` + version + `"`)
	return json.Marshal(m)
}

// absent reports whether a key is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
