package cloudsim

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/cnibox/cnibox/store"
)

const openstackName = "openstack"

// openstack is Nova's service.
func openstack() *provider {
	return &provider{name: openstackName, at: []string{"169.254.169.254:80"}, below: []string{"/openstack"}, serve: serveOpenstack}
}

func serveOpenstack(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	at := parts(q.path)
	switch {
	case len(at) == 1:
		return answer(http.StatusOK, typeText, "2018-08-27\n2020-10-14\nlatest")
	case len(at) == 2:
		return answer(http.StatusOK, typeText, "meta_data.json\nnetwork_data.json\nvendor_data.json")
	case len(at) == 3 && at[2] == "network_data.json":
		return answer(http.StatusOK, typeJSON, string(encode(openstackNetwork(q.view))))
	}
	return page(http.StatusNotFound)
}

// openstackNetwork has a network for each fixed address of a port; allowed address pairs are not shown.
func openstackNetwork(v *view) map[string]any {
	links, networks, services := []any{}, []any{}, []any{}
	known := map[netip.Addr]bool{}
	for i := range v.nics {
		n := &v.nics[i]
		link := fmt.Sprintf("tap%08x-%02x", 0x1234abcd, i)
		var mtu any // null where Neutron knows none
		if n.MTU > 0 {
			mtu = n.MTU
		}
		links = append(links, map[string]any{
			"ethernet_mac_address": v.write(n, macColons), "id": link, "mtu": mtu, "type": "ovs",
			"vif_id": fmt.Sprintf("a1b2c3d4-0000-4000-8000-%012x", i),
		})
		for _, s := range n.Subnets {
			for _, a := range held(&s) {
				networks = append(networks, openstackAddress(&s, a, link, len(networks)))
			}
		}
		for _, a := range n.DNS {
			if !known[a] {
				known[a] = true
				services = append(services, map[string]any{"address": a.String(), "type": "dns"})
			}
		}
	}
	return map[string]any{"links": links, "networks": networks, "services": services}
}

func openstackAddress(s *store.CloudSubnet, a netip.Addr, link string, at int) map[string]any {
	kind, nowhere := "ipv4", netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if a.Is6() {
		kind, nowhere = "ipv6", netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return map[string]any{
		"id": fmt.Sprintf("network%d", at), "link": link, "type": kind,
		"ip_address": a.String(), "netmask": netmask(s.Prefix),
		"network_id": "0f1e2d3c-0000-4000-8000-000000000000",
		"routes": []any{map[string]any{
			"network": nowhere.Addr().String(), "netmask": netmask(nowhere), "gateway": gateway(s).String(),
		}},
	}
}
