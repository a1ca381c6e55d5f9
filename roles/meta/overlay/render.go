package overlay

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/store"
)

// passed are the keys that the delegate gets as the overlay got them: what the
// spec has every plugin know.
var passed = [...]string{"cniVersion", "args", "dns", "runtimeConfig", "capabilities", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"} //nolint:gochecknoglobals // a constant

// render makes the delegate's configuration of the received one. Without a node
// it has no addresses, which DEL and GC do not need.
func (c *Conf) render(raw json.RawMessage, node *store.Overlay) (json.RawMessage, error) {
	var own Object
	if err := json.Unmarshal(raw, &own); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	out := Object{}
	for key, value := range c.Delegate {
		out[key] = value
	}
	for _, key := range passed {
		if value, ok := own[key]; ok {
			out[key] = value
		}
	}
	out.set("name", c.Name)
	out.set("type", c.delegateType())
	if c.delegateType() == "bridge" {
		out.preset("isGateway", true)
		out.preset("forceAddress", true)
	}
	ipam := Object{}
	for key, value := range c.IPAM {
		ipam[key] = value
	}
	ipam.preset("type", "host-local")
	if node != nil {
		out.preset("ipMasq", !node.IPMasq)
		out.preset("mtu", node.MTU)
		c.addressing(ipam, node)
	}
	out.set("ipam", ipam)
	return json.Marshal(out)
}

// addressing tells the IPAM plugin this node's subnets and the ways to the others.
func (c *Conf) addressing(ipam Object, node *store.Overlay) {
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

// set puts a value of ours, which always has a JSON form.
func (o Object) set(key string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("overlay: encode %q: %v", key, err))
	}
	o[key] = raw
}

// preset is set where nothing was given.
func (o Object) preset(key string, value any) {
	if _, ok := o[key]; !ok {
		o.set(key, value)
	}
}
