package metadata

func digitalOcean() Provider {
	return cloud("digitalocean", linkLocal, "DigitalOcean: shows the node's own addresses only, none for pods",
		"DigitalOcean's metadata shows a droplet's own addresses only (an anchor address is for reserved IPs, not for pods): use an overlay network, or list addresses in a file (provider \"file\")",
		document(nil, "/metadata/v1.json", decodeDigitalOcean))
}

type dropletInterface struct {
	MAC  string `json:"mac"`
	IPv4 struct {
		Address string `json:"ip_address"`
		Mask    string `json:"netmask"`
		Gateway string `json:"gateway"`
	} `json:"ipv4"`
	IPv6 struct {
		Address string `json:"ip_address"`
		Bits    int    `json:"cidr"`
		Gateway string `json:"gateway"`
	} `json:"ipv6"`
}

// decodeDigitalOcean parses the interfaces, public ones first.
func decodeDigitalOcean(b []byte) ([]nic, error) {
	var doc struct {
		Interfaces struct {
			Public  []dropletInterface `json:"public"`
			Private []dropletInterface `json:"private"`
		} `json:"interfaces"`
		DNS struct {
			Nameservers []string `json:"nameservers"`
		} `json:"dns"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	var nics []nic
	for i, d := range append(doc.Interfaces.Public, doc.Interfaces.Private...) {
		n := nic{mac: d.MAC, device: i, primary: i == 0, dns: doc.DNS.Nameservers}
		if d.IPv4.Address != "" {
			n.subnets = append(n.subnets, subnet{prefix: withMask(d.IPv4.Address, d.IPv4.Mask), gateway: d.IPv4.Gateway, own: []string{d.IPv4.Address}})
		}
		if d.IPv6.Address != "" {
			n.subnets = append(n.subnets, subnet{prefix: withBits(d.IPv6.Address, d.IPv6.Bits), gateway: d.IPv6.Gateway, own: []string{d.IPv6.Address}})
		}
		nics = append(nics, n)
	}
	return nics, nil
}
