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
	const base = "http://169.254.169.254"
	return Provider{
		Name: "gcp", Default: base,
		Summary: "Google Compute Engine: alias IP ranges of each interface",
		Fetch: overHTTP("gcp", "no interface has an alias IP range (gcloud compute instances network-interfaces update --aliases)",
			[]string{base}, func(ctx context.Context, a *api) ([]nic, error) {
				a.header.Set(gcpFlavor, "Google")
				a.checkHeader = func(h http.Header) error {
					if h.Get(gcpFlavor) != "Google" {
						return errors.New("no " + gcpFlavor + ": it is not Google's metadata service")
					}
					return nil
				}
				b, err := a.get(ctx, "/computeMetadata/v1/instance/network-interfaces/?recursive=true&alt=json")
				if err != nil {
					return nil, err
				}
				return decodeGCP(b)
			}),
	}
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
