package metadata

import (
	"net/netip"
	"strings"
)

func openstack() Provider {
	return cloud("openstack", linkLocal, "OpenStack: second and further fixed addresses of each port; allowed address pairs are not shown",
		"each port has one fixed address: add further ones to it (openstack port set --fixed-ip); allowed address pairs are not shown",
		document(nil, "/openstack/latest/network_data.json", decodeOpenStack))
}

type openstackNetwork struct {
	Link    string `json:"link"`
	Type    string `json:"type"`
	IP      string `json:"ip_address"`
	Mask    string `json:"netmask"`
	Gateway string `json:"gateway"`
	Routes  []struct {
		Network string `json:"network"`
		Mask    string `json:"netmask"`
		Gateway string `json:"gateway"`
	} `json:"routes"`
}

// decodeOpenStack parses links and networks. Each fixed address of a port is a separate network.
// The first one of a family is the node's own.
func decodeOpenStack(b []byte) ([]nic, error) {
	var doc struct {
		Links []struct {
			ID  string `json:"id"`
			VIF string `json:"vif_id"`
			MAC string `json:"ethernet_mac_address"`
			MTU int    `json:"mtu"`
		} `json:"links"`
		Networks []openstackNetwork `json:"networks"`
		Services []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"services"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	var dns []string
	for _, s := range doc.Services {
		if s.Type == "dns" {
			dns = append(dns, s.Address)
		}
	}
	of := map[string][]openstackNetwork{}
	for _, n := range doc.Networks {
		of[n.Link] = append(of[n.Link], n)
	}
	nics := make([]nic, 0, len(doc.Links))
	for i, l := range doc.Links {
		n := nic{mac: l.MAC, device: i, primary: i == 0, mtu: l.MTU, id: l.VIF, dns: dns}
		seen := map[string]bool{}
		for _, net := range of[l.ID] {
			if net.IP == "" { // the address comes from DHCP or router advertisements
				continue
			}
			addr, _, _ := strings.Cut(net.IP, "/")
			s := subnet{prefix: net.prefix(), gateway: net.router(), addresses: []string{addr}}
			if family := net.Type[:min(4, len(net.Type))]; !seen[family] {
				seen[family] = true
				s.own, s.addresses = s.addresses, nil
			}
			n.subnets = append(n.subnets, s)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// prefix returns the address's subnet, from ADDRESS/BITS or a separate mask.
func (n *openstackNetwork) prefix() string {
	if addr, bits, ok := strings.Cut(n.IP, "/"); ok {
		return withMask(addr, bits)
	}
	return withMask(n.IP, n.Mask)
}

// router returns the gateway of the default route.
func (n *openstackNetwork) router() string {
	for _, r := range n.Routes {
		if p, err := netip.ParsePrefix(withMask(r.Network, r.Mask)); err == nil && p.Bits() == 0 {
			return r.Gateway
		}
	}
	return n.Gateway
}
