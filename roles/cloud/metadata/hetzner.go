package metadata

import (
	"fmt"
	"strconv"

	"github.com/cnibox/cnibox/internal/yaml"
)

func hetzner() Provider {
	return cloud("hetzner", linkLocal, "Hetzner Cloud: alias IPs of each private network",
		"no private network has alias IPs for this server (hcloud server change-alias-ips)",
		document(nil, "/hetzner/v1/metadata/private-networks", decodeHetzner))
}

// decodeHetzner parses the private networks (YAML), each of which is an interface. The primary
// interface is the public one and has no addresses for pods.
func decodeHetzner(b []byte) ([]nic, error) {
	var doc []struct {
		IP        string   `json:"ip"`
		Aliases   []string `json:"alias_ips"`
		Number    int      `json:"interface_num"`
		MAC       string   `json:"mac_address"`
		NetworkID int64    `json:"network_id"`
		Network   string   `json:"network"`
		Subnet    string   `json:"subnet"`
		Gateway   string   `json:"gateway"`
	}
	j, err := yaml.ToJSON(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := fromJSON(j, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc))
	for _, d := range doc {
		n := nic{mac: d.MAC, device: d.Number, id: strconv.FormatInt(d.NetworkID, 10)}
		if d.Network != "" {
			n.network = []string{d.Network}
		}
		n.subnets = []subnet{{prefix: d.Subnet, gateway: d.Gateway, own: []string{d.IP}, addresses: d.Aliases}}
		nics = append(nics, n)
	}
	return nics, nil
}
