package metadata

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
)

// azureHost is Azure's host agent, which provides each VM's addresses. azureOldHost is its address
// on hosts from before 2018.
const (
	azureHost    = "http://168.63.129.16"
	azureOldHost = "http://169.254.169.254"
	azurePath    = "/machine/plugins?comp=nmagent&type=getinterfaceinfov1"
	// azureDNS is the VNet's resolver, which has the same address as the agent.
	azureDNS = "168.63.129.16"
)

func azure() Provider {
	return Provider{
		Name: "azure", Default: azureHost,
		Summary: "Azure's host agent (XML at 168.63.129.16): the secondary addresses of each interface",
		Fetch: overHTTP("azure", "only primary addresses are assigned: add IP configurations to the network interface (az network nic ip-config create)",
			[]string{azureHost, azureOldHost}, func(ctx context.Context, a *api) ([]nic, error) {
				b, err := a.get(ctx, azurePath)
				if err != nil {
					return nil, err
				}
				return decodeAzure(b)
			}),
	}
}

type azureInterfaces struct {
	XMLName   struct{} `xml:"Interfaces"`
	Interface []struct {
		MacAddress string `xml:"MacAddress,attr"`
		IsPrimary  string `xml:"IsPrimary,attr"`
		IPSubnet   []struct {
			Prefix    string `xml:"Prefix,attr"`
			IPAddress []struct {
				Address   string `xml:"Address,attr"`
				IsPrimary string `xml:"IsPrimary,attr"`
			} `xml:"IPAddress"`
		} `xml:"IPSubnet"`
	} `xml:"Interface"`
}

// decodeAzure parses the agent's XML.
func decodeAzure(b []byte) ([]nic, error) {
	var doc azureInterfaces
	if err := xml.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), &doc); err != nil {
		return nil, fmt.Errorf("%w: XML: %w", ErrInvalid, err)
	}
	nics := make([]nic, 0, len(doc.Interface))
	for _, i := range doc.Interface {
		n := nic{mac: i.MacAddress, device: unnumbered, primary: isTrue(i.IsPrimary), dns: []string{azureDNS}}
		for _, s := range i.IPSubnet {
			to := subnet{prefix: s.Prefix}
			for _, a := range s.IPAddress {
				if isTrue(a.IsPrimary) {
					to.own = append(to.own, a.Address)
				} else {
					to.addresses = append(to.addresses, a.Address)
				}
			}
			n.subnets = append(n.subnets, to)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// isTrue parses a boolean of XML Schema.
func isTrue(s string) bool { return s == "true" || s == "True" || s == "1" }
