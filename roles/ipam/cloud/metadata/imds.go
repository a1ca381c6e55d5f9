package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
)

// imdsPath is of a version that all regions have.
const imdsPath = "/metadata/instance/network?api-version=2021-02-01"

func azureIMDS() Provider {
	const base = "http://169.254.169.254"
	return Provider{
		Name: "azure-imds", Default: base,
		Summary: "Azure's Instance Metadata Service: the same addresses, for VMs that cannot reach the host agent",
		Fetch: overHTTP("azure-imds", "each interface has one address only: add IP configurations to it (az network nic ip-config create)",
			[]string{base}, func(ctx context.Context, a *asker) ([]nic, error) {
				a.header.Set("Metadata", "true")
				b, err := a.get(ctx, imdsPath)
				if err != nil {
					return nil, err
				}
				return decodeIMDS(b)
			}),
	}
}

type imdsFamily struct {
	IPAddress []struct {
		Private string `json:"privateIpAddress"`
	} `json:"ipAddress"`
	Subnet []struct {
		Address string `json:"address"`
		Prefix  string `json:"prefix"`
	} `json:"subnet"`
}

// decodeIMDS reads the network part. It says neither which interface is the
// primary one, nor which address: the node's own is the one that the node has.
func decodeIMDS(b []byte) ([]nic, error) {
	var doc struct {
		Interface []struct {
			MAC  string     `json:"macAddress"`
			IPv4 imdsFamily `json:"ipv4"`
			IPv6 imdsFamily `json:"ipv6"`
		} `json:"interface"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc.Interface))
	for _, i := range doc.Interface {
		n := nic{mac: i.MAC, device: unnumbered, dns: []string{azureDNS}}
		for _, f := range []imdsFamily{i.IPv4, i.IPv6} {
			var addresses, prefixes []string
			for _, a := range f.IPAddress {
				addresses = append(addresses, a.Private)
			}
			for _, s := range f.Subnet {
				prefixes = append(prefixes, s.Address+"/"+s.Prefix)
			}
			if len(prefixes) == 0 {
				prefixes = sixtyFours(addresses)
			}
			n.subnets = append(n.subnets, homesOf(prefixes, "").unmarked(addresses).subnets...)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// sixtyFours are the subnets of IPv6 addresses: no other is told, and a subnet of
// Azure's has 64 bits (learn.microsoft.com, "What is IPv6 for Azure Virtual Network?").
func sixtyFours(addresses []string) []string {
	var prefixes []string
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is6() || len(prefixes) >= maxSubnets {
			continue
		}
		if p := withBits(text, 64); !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// fromJSON decodes a whole reply.
func fromJSON(b []byte, into any) error {
	err := json.Unmarshal(b, into)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) { // its text is about types of Go's
		return fmt.Errorf("%w: JSON: %.40s where none can be, at byte %d in %q", ErrInvalid, wrong.Value, wrong.Offset, wrong.Field)
	}
	if err != nil {
		return fmt.Errorf("%w: JSON: %w", ErrInvalid, err)
	}
	return nil
}

// headerOf is a header of one field.
func headerOf(name, value string) http.Header { return http.Header{name: {value}} }
