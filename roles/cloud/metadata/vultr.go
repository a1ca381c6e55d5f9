package metadata

import "encoding/json"

func vultr() Provider {
	return cloud("vultr", linkLocal, "Vultr: additional addresses of each interface",
		"no interface has additional addresses",
		document(nil, "/v1.json", decodeVultr))
}

// decodeVultr parses the interfaces. An additional address is a string, or an object with an
// address and a mask.
func decodeVultr(b []byte) ([]nic, error) {
	type family struct {
		Address    string            `json:"address"`
		Additional []json.RawMessage `json:"additional"`
		Gateway    string            `json:"gateway"`
		Mask       string            `json:"netmask"`
		Network    string            `json:"network"`
		Prefix     json.RawMessage   `json:"prefix"`
	}
	var doc struct {
		Interfaces []struct {
			MAC  string `json:"mac"`
			Type string `json:"network-type"`
			IPv4 family `json:"ipv4"`
			IPv6 family `json:"ipv6"`
		} `json:"interfaces"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc.Interfaces))
	for i, d := range doc.Interfaces {
		n := nic{mac: d.MAC, device: i, primary: i == 0}
		for _, f := range []family{d.IPv4, d.IPv6} {
			if f.Address == "" {
				continue
			}
			prefix := withMask(f.Address, f.Mask)
			if f.Network != "" {
				prefix = withMask(f.Network, textOf(f.Prefix))
			}
			s := subnet{prefix: prefix, gateway: f.Gateway, own: []string{f.Address}}
			for _, raw := range f.Additional {
				s.addresses = append(s.addresses, vultrAddress(raw))
			}
			n.subnets = append(n.subnets, s)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

func vultrAddress(raw json.RawMessage) string {
	var o struct {
		Address string `json:"address"`
	}
	if json.Unmarshal(raw, &o) == nil && o.Address != "" {
		return o.Address
	}
	return textOf(raw)
}

// textOf returns a string, or a number as text.
func textOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}
