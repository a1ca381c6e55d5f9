package overlay

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/store"
)

// copiedKeys are the keys that are copied to the delegate's configuration. The CNI specification
// defines them for every plugin.
var copiedKeys = [...]string{"cniVersion", "args", "dns", "runtimeConfig", "capabilities", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"} //nolint:gochecknoglobals // a constant

// render builds the delegate's configuration from the received one. former are the subnets that the
// network had on this node before. If node is nil the result has no addresses. DEL and GC do not
// need them.
func (c *Conf) render(raw json.RawMessage, node *store.Overlay, former []netip.Prefix) (json.RawMessage, error) {
	var own Object
	if err := json.Unmarshal(raw, &own); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	out := Object{}
	for key, value := range c.Delegate {
		out[key] = value
	}
	for _, key := range copiedKeys {
		if value, ok := own[key]; ok {
			out[key] = value
		}
	}
	out.set("name", c.Name)
	out.set("type", c.delegateType())
	if c.delegateType() == "bridge" {
		out.setDefault("isGateway", true)
		if _, given := out["forceAddress"]; !given && node != nil {
			out.setDefault("forceAddressIn", ownNetworks(node, former))
		}
		out.setDefault("forceAddress", true)
	}
	ipam := Object{}
	for key, value := range c.IPAM {
		ipam[key] = value
	}
	ipam.setDefault("type", "host-local")
	if node != nil {
		out.setDefault("ipMasq", !node.IPMasq)
		out.setEgress(node)
		out.setDefault("mtu", node.MTU)
		c.setAddresses(ipam, node)
	}
	if node == nil { // without the networks that it excepts, the delegate would refuse it
		delete(out, keyEgressAddress)
		delete(out, keyEgressExcept)
	}
	out.set("ipam", ipam)
	return json.Marshal(out)
}

// Keys of the delegate with which packets leave the node with a given address.
const (
	keyEgressAddress = "egressAddress"
	keyEgressExcept  = "egressExcept"
)

// setEgress excepts the networks that the agent does not masquerade from the delegate's
// egressAddress. If nobody masquerades, the delegate refuses egressAddress.
func (o Object) setEgress(node *store.Overlay) {
	_, isGiven := o[keyEgressAddress]
	var masquerades bool
	if json.Unmarshal(o["ipMasq"], &masquerades) != nil || !isGiven || !masquerades && !node.IPMasq {
		return
	}
	var all []json.RawMessage
	if raw, ok := o[keyEgressExcept]; ok && json.Unmarshal(raw, &all) != nil {
		return // the delegate reports it
	}
	except := make([]any, 0, len(all))
	for _, given := range all {
		except = append(except, given)
	}
	for _, p := range slices.Concat(ownNetworks(node, nil), node.IPMasqExcept) {
		except = append(except, p)
	}
	o.set(keyEgressExcept, except)
}

// ownNetworks returns the networks whose addresses belong to the overlay.
func ownNetworks(node *store.Overlay, former []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, f := range []*store.OverlayFamily{node.IPv4, node.IPv6} {
		if f != nil {
			all = append(all, f.Networks...)
		}
	}
	for _, p := range former {
		if !slices.ContainsFunc(all, func(n netip.Prefix) bool { return n.Overlaps(p) }) {
			all = append(all, p)
		}
	}
	return all
}

// setAddresses sets this node's subnets and the routes to the overlay's networks in the IPAM
// configuration.
func (c *Conf) setAddresses(ipam Object, node *store.Overlay) {
	type subnet struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	type route struct {
		Dst netip.Prefix `json:"dst"`
	}
	var ranges [][]subnet
	var routes []any
	var given []json.RawMessage
	if json.Unmarshal(c.IPAM["routes"], &given) == nil {
		for _, r := range given {
			routes = append(routes, r)
		}
	}
	for _, f := range []*store.OverlayFamily{node.IPv4, node.IPv6} {
		if f == nil {
			continue
		}
		ranges = append(ranges, []subnet{{f.Subnet}})
		for _, n := range slices.Compact(f.Networks) {
			routes = append(routes, route{n})
		}
	}
	ipam.set("ranges", ranges)
	ipam.set("routes", routes)
}

// set sets a value that can always be encoded as JSON.
func (o Object) set(key string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("overlay: encode %q: %v", key, err))
	}
	o[key] = raw
}

// setDefault sets a value if the key is missing.
func (o Object) setDefault(key string, value any) {
	if _, ok := o[key]; !ok {
		o.set(key, value)
	}
}
