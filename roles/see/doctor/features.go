package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/view"
)

// featuresOf returns the names of the kernel's features that a plugin needs.
func featuresOf(typ string) []string {
	return map[string][]string{
		"bridge": {"link-bridge", "link-veth"}, "ptp": {"link-veth"}, "routed": {"link-veth"}, "azure-vnet": {"link-veth", "nftables-bridge"},
		"macvlan": {"link-macvlan"}, "ipvlan": {"link-ipvlan"}, "vlan": {"link-vlan"}, "dummy": {"link-dummy"}, "bond": {"link-bond"}, "vrf": {"link-vrf"}, "tap": {"tun"},
		"bandwidth": {"link-ifb"}, "portmap": {"nftables"}, "firewall": {"nftables"},
	}[typ]
}

// features returns the names of the features that the networks need, each with a network's file.
func (f *Facts) features() map[string]string {
	users := map[string]string{}
	for _, n := range f.Networks {
		all := slices.Clone(n.Features)
		for _, typ := range n.Types {
			all = append(all, featuresOf(typ)...)
		}
		if n.Overlay {
			all = append(all, f.backendFeature())
		}
		for _, name := range all {
			users[name] = n.Path
		}
	}
	return users
}

// backendFeature returns the feature that the agent's backend needs, or "". Without an agent the device of flanneld shows the backend.
func (f *Facts) backendFeature() string {
	backend := check.KindVXLAN
	if slices.ContainsFunc(f.links(), func(l netops.LinkInfo) bool {
		return l.Kind == check.KindWireGuard && strings.HasPrefix(l.Name, "flannel")
	}) {
		backend = check.KindWireGuard
	}
	if a := f.Overlay.Agent; a != nil {
		backend = cmp.Or(a.Backend, backend)
	}
	return map[string]string{check.KindVXLAN: "link-vxlan", check.KindWireGuard: "link-wireguard"}[backend]
}

// readFeatures asks the kernel for the features that the networks need.
func (r *reader) readFeatures(ctx context.Context) {
	r.f.Missing = map[string]string{}
	users := r.f.features()
	for _, f := range netops.Features() {
		path, needed := users[f.Name]
		if !needed {
			continue
		}
		has, err := view.Ask(r.f.Host, "feature: "+f.Name, func() (bool, error) { return r.h.Net.HasFeature(ctx, &f) })
		r.unread("feature "+f.Name+" of the kernel", err)
		if err == nil && !has {
			r.f.Missing[f.Name] = fmt.Sprintf("%s needs %s", path, f.Option)
		}
	}
}
