package metadata

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
)

// gcpFlavor is a header of each request, and of each reply from Google.
const gcpFlavor = "Metadata-Flavor"

func gcp() Provider {
	read := document(headerOf(gcpFlavor, "Google"), "/computeMetadata/v1/instance/network-interfaces/?recursive=true&alt=json", decodeGCP)
	return cloud("gcp", linkLocal, "Google Compute Engine: alias IP ranges of each interface",
		"no interface has an alias IP range (gcloud compute instances network-interfaces update --aliases)",
		func(ctx context.Context, a *api) ([]nic, error) {
			a.checkHeader = func(h http.Header) error {
				if h.Get(gcpFlavor) != "Google" {
					return errors.New("no " + gcpFlavor + ": it is not Google's metadata service")
				}
				return nil
			}
			return read(ctx, a)
		})
}

// decodeGCP parses the interfaces. An alias range belongs to the interface's subnet or to another
// range of the VPC. In both cases the gateway is the interface's. The metadata has no IPv6 ranges.
func decodeGCP(b []byte) ([]nic, error) {
	var doc []struct {
		IP      string   `json:"ip"`
		MAC     string   `json:"mac"`
		Gateway string   `json:"gateway"`
		Mask    string   `json:"subnetmask"`
		MTU     int      `json:"mtu"`
		Aliases []string `json:"ipAliases"`
		DNS     []string `json:"dnsServers"`
		Network string   `json:"network"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc))
	for i, d := range doc {
		n := nic{mac: d.MAC, device: i, primary: i == 0, mtu: d.MTU, dns: d.DNS, id: d.Network}
		home := subnet{prefix: withMask(d.IP, d.Mask), gateway: d.Gateway, own: []string{d.IP}}
		parsed, _ := netip.ParsePrefix(home.prefix)
		for _, alias := range d.Aliases {
			p, single := asPrefix(alias)
			switch {
			case !parsed.Contains(p.Addr()):
				n.subnets = append(n.subnets, subnet{prefix: p.Masked().String(), gateway: d.Gateway, ranges: []string{alias}})
			case single:
				home.addresses = append(home.addresses, p.Addr().String())
			default:
				home.ranges = append(home.ranges, alias)
			}
		}
		n.subnets = append(n.subnets, home)
		nics = append(nics, n)
	}
	return nics, nil
}
