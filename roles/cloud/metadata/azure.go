package metadata

import (
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
func decodeAzure(b []byte) (nics []nic, err error) {
	text := strings.TrimPrefix(string(b), "\ufeff")
	const inner = "Interfaces/Interface/IPSubnet/IPAddress"
	var path []string
	for {
		var t tag
		t, text, err = nextTag(text)
		if err != nil {
			return nil, fmt.Errorf("%w: XML: %w", ErrInvalid, err)
		}
		if t.name == "" {
			continue
		}
		if !t.ends {
			path = append(path, t.name)
		}
		switch at := strings.Join(path[:min(len(path), strings.Count(inner, "/")+2)], "/"); {
		case t.ends:
		case len(path) == 1 && at != "Interfaces":
			return nil, fmt.Errorf("%w: XML: want Interfaces instead of %.40q", ErrInvalid, at)
		case at == "Interfaces/Interface":
			nics = append(nics, nic{mac: t.attributes["MacAddress"], device: unnumbered, primary: isTrue(t.attributes["IsPrimary"]), dns: []string{azureDNS}})
		case at == "Interfaces/Interface/IPSubnet":
			n := &nics[len(nics)-1]
			n.subnets = append(n.subnets, subnet{prefix: t.attributes["Prefix"]})
		case at == inner:
			subnets := nics[len(nics)-1].subnets
			s, address := &subnets[len(subnets)-1], t.attributes["Address"]
			if isTrue(t.attributes["IsPrimary"]) {
				s.own = append(s.own, address)
			} else {
				s.addresses = append(s.addresses, address)
			}
		}
		if !t.ends && !t.isEmpty {
			continue
		}
		if len(path) == 0 || path[len(path)-1] != t.name {
			return nil, fmt.Errorf("%w: XML: an end of %.40q without its start", ErrInvalid, t.name)
		}
		path = path[:len(path)-1]
		if len(path) == 0 {
			return nics, nil
		}
	}
}

// tag is a start or an end of an element. Its names are without prefixes. isEmpty is true for one that is both.
type tag struct {
	name          string
	attributes    map[string]string
	ends, isEmpty bool
}

// nextTag returns the next tag of a document, and what follows it. For a comment and the like the name is "". It refuses document types, so there are no entities to expand, and
// keeps references as they are: no value that is used has any.
func nextTag(text string) (t tag, rest string, err error) {
	_, text, _ = strings.Cut(text, "<")
	for start, end := range map[string]string{"?": "?>", "!--": "-->", "![CDATA[": "]]>"} {
		if after, ok := strings.CutPrefix(text, start); ok {
			_, rest, _ = strings.Cut(after, end)
			return t, rest, nil
		}
	}
	text, t.ends = strings.CutPrefix(text, "/")
	t.name, text = xmlName(text)
	t.attributes = map[string]string{}
	for {
		text = strings.TrimLeft(text, xmlSpace)
		rest, t.isEmpty = strings.CutPrefix(text, "/>")
		if t.isEmpty && t.name != "" && !t.ends {
			return t, rest, nil
		}
		rest, closed := strings.CutPrefix(text, ">")
		if closed && t.name != "" {
			return t, rest, nil
		}
		var name string
		name, text = xmlName(text)
		after, ok := strings.CutPrefix(strings.TrimLeft(text, xmlSpace), "=")
		after = strings.TrimLeft(after, xmlSpace)
		if !ok || name == "" || after == "" || after[0] != '"' && after[0] != '\'' {
			return t, "", fmt.Errorf("no tag at %.40q", text)
		}
		value, rest, ended := strings.Cut(after[1:], after[:1])
		if !ended {
			return t, "", fmt.Errorf("a value without an end at %.40q", after)
		}
		if _, given := t.attributes[name]; !given {
			t.attributes[name] = value
		}
		text = rest
	}
}

// xmlSpace is white space (Extensible Markup Language 1.0, section 2.3).
const xmlSpace = " \t\r\n"

// xmlName cuts off a name, and returns it without its prefix.
func xmlName(text string) (name, rest string) {
	n := strings.IndexAny(text, xmlSpace+"/>=<\"'")
	if n < 0 {
		return "", ""
	}
	name, rest = text[:n], text[n:]
	if prefix, local, _ := strings.Cut(name, ":"); prefix != "" && local != "" {
		name = local
	}
	return name, rest
}

// isTrue parses a boolean of XML Schema.
func isTrue(s string) bool { return s == "true" || s == "True" || s == "1" }
