package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
)

// imdsPath has a version that all regions support.
const imdsPath = "/metadata/instance/network?api-version=2021-02-01"

func azureIMDS() Provider {
	return cloud("azure-imds", linkLocal, "Azure's Instance Metadata Service: the same addresses, for VMs that cannot reach the host agent",
		"each interface has one address only: add IP configurations to it (az network nic ip-config create)",
		document(headerOf("Metadata", "true"), imdsPath, decodeIMDS))
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

// decodeIMDS parses the network part. It does not mark the primary interface or address. The node's
// own address is the one that a link of the node has.
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
			n.subnets = append(n.subnets, newSubnetList(prefixes, "").unmarked(addresses).subnets...)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// sixtyFours returns the /64 subnets of IPv6 addresses. IMDS does not list them, and Azure's IPv6
// subnets have 64 bits (learn.microsoft.com, "What is IPv6 for Azure Virtual Network?").
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

// fromJSON decodes a complete reply.
func fromJSON(b []byte, into any) error {
	err := json.Unmarshal(b, into)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) { // its own message has Go's type names
		return fmt.Errorf("%w: JSON: unexpected %.40s at byte %d in %q", ErrInvalid, wrong.Value, wrong.Offset, wrong.Field)
	}
	if err != nil {
		return fmt.Errorf("%w: JSON: %w", ErrInvalid, err)
	}
	return nil
}

// headerOf returns a header with one field.
func headerOf(name, value string) http.Header { return http.Header{name: {value}} }
