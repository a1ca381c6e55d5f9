package metadata

func oracle() Provider {
	return cloud("oracle", linkLocal, "Oracle Cloud: further IPv6 addresses of each VNIC; its secondary IPv4 addresses are not shown",
		"Oracle's metadata shows the primary private address of each VNIC only: list the secondary ones in a file (provider \"file\")",
		document(headerOf("Authorization", "Bearer Oracle"), "/opc/v2/vnics/", decodeOracle))
}

// decodeOracle parses the VNICs. The first one is the primary one. A missing field may be the text
// "<null>".
func decodeOracle(b []byte) ([]nic, error) {
	var doc []struct {
		ID       string   `json:"vnicId"`
		MAC      string   `json:"macAddr"`
		IP       string   `json:"privateIp"`
		Router   string   `json:"virtualRouterIp"`
		Subnet   string   `json:"subnetCidrBlock"`
		IPv6     []string `json:"ipv6Addresses"`
		Subnet6  string   `json:"ipv6SubnetCidrBlock"`
		Router6  string   `json:"ipv6VirtualRouterIp"`
		NICIndex int      `json:"nicIndex"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc))
	for i, d := range doc {
		n := nic{mac: d.MAC, device: i, primary: i == 0, id: d.ID}
		if isSet(d.Subnet) {
			n.subnets = append(n.subnets, newSubnetList([]string{d.Subnet}, orEmpty(d.Router)).own(d.IP).subnets...)
		}
		if isSet(d.Subnet6) {
			n.subnets = append(n.subnets, newSubnetList([]string{d.Subnet6}, orEmpty(d.Router6)).unmarked(d.IPv6).subnets...)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

func isSet(s string) bool { return s != "" && s != "<null>" }

func orEmpty(s string) string {
	if !isSet(s) {
		return ""
	}
	return s
}
