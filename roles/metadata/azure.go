package metadata

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// azureHost is Azure's host agent, which provides each VM's addresses. azureOldHost is its address
// on hosts from before 2018.
const (
	azureHost    = "http://168.63.129.16"
	azureOldHost = linkLocal
	azurePath    = "/machine/plugins?comp=nmagent&type=getinterfaceinfov1"
	// azureDNS is the VNet's resolver, which has the same address as the agent.
	azureDNS = "168.63.129.16"
)

func azure() Provider {
	return Provider{
		Name: "azure", Default: azureHost,
		Summary: "Azure's host agent (XML at 168.63.129.16): the secondary addresses of each interface",
		Fetch: overHTTP("azure", "only primary addresses are assigned: add IP configurations to the network interface (az network nic ip-config create)",
			[]string{azureHost, azureOldHost}, document(nil, azurePath, decodeAzure)),
	}
}

// decodeAzure parses the agent's XML: Interfaces with an Interface for each network interface, its IPSubnets, and their IPAddresses.
// It reads tokens, because xml.Unmarshal would add 60 kB to the binary.
func decodeAzure(b []byte) (nics []nic, err error) {
	d := xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(b, []byte("\ufeff"))))
	const inner = "Interfaces/Interface/IPSubnet/IPAddress"
	var path []string
	for {
		token, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: XML: %w", ErrInvalid, err)
		}
		switch t := token.(type) {
		case xml.EndElement:
			path = path[:len(path)-1]
			if len(path) == 0 {
				return nics, nil
			}
		case xml.StartElement:
			path = append(path, t.Name.Local)
			if len(path) > strings.Count(inner, "/")+1 {
				continue
			}
			switch at := strings.Join(path, "/"); {
			case len(path) == 1 && at != "Interfaces":
				return nil, fmt.Errorf("%w: XML: want Interfaces instead of %.40q", ErrInvalid, at)
			case at == "Interfaces/Interface":
				nics = append(nics, nic{mac: attribute(t, "MacAddress"), device: unnumbered, primary: isTrue(attribute(t, "IsPrimary")), dns: []string{azureDNS}})
			case at == "Interfaces/Interface/IPSubnet":
				n := &nics[len(nics)-1]
				n.subnets = append(n.subnets, subnet{prefix: attribute(t, "Prefix")})
			case at == inner:
				subnets := nics[len(nics)-1].subnets
				s, address := &subnets[len(subnets)-1], attribute(t, "Address")
				if isTrue(attribute(t, "IsPrimary")) {
					s.own = append(s.own, address)
				} else {
					s.addresses = append(s.addresses, address)
				}
			}
		}
	}
}

// attribute returns an attribute of an element, or "".
func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// isTrue parses a boolean of XML Schema.
func isTrue(s string) bool { return s == "true" || s == "True" || s == "1" }
