package azureview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Endpoint is what azure-vnet.json has of an attachment beyond its record.
type Endpoint struct {
	// Mode is azure-vnet's: "bridge", "tunnel", "transparent", "transparent-vlan".
	Mode string
	// Master is the host's interface into the cloud's network, MasterMAC its
	// hardware address.
	Master, MasterMAC string
	// Bridge is the bridge that Master is a port of; empty in modes without a bridge.
	Bridge string
	// Own are the node's own addresses, which Bridge took over from Master.
	Own  []netip.Prefix
	VLAN int
	// Result is the IPAM plugin's answer.
	Result *roles.Result
}

// note is an Endpoint as an attachment's Note.
type note struct {
	Mode      string         `json:"mode"`
	Master    string         `json:"master"`
	MasterMAC string         `json:"masterMAC,omitempty"`
	Bridge    string         `json:"bridge,omitempty"`
	Own       []netip.Prefix `json:"own,omitempty"`
	VLAN      int            `json:"vlan,omitempty"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"`
	Routes    []noteRoute    `json:"routes,omitempty"`
	Suffix    string         `json:"suffix,omitempty"`
	Servers   []string       `json:"servers,omitempty"`
}

type noteRoute struct {
	Dst netip.Prefix `json:"dst"`
	Via netip.Addr   `json:"via,omitzero"`
}

// Note is what azure-vnet records with an attachment (attach.Desired).
func (e Endpoint) Note() (json.RawMessage, error) {
	n := note{Mode: e.Mode, Master: e.Master, MasterMAC: e.MasterMAC, Bridge: e.Bridge, Own: e.Own, VLAN: e.VLAN}
	if r := e.Result; r != nil {
		n.Suffix, n.Servers = r.DNS.Domain, r.DNS.Nameservers
		for _, ip := range r.IPs {
			if ip != nil && ip.Gateway != nil {
				n.Gateways = append(n.Gateways, addrOf(ip.Gateway))
			}
		}
		for _, rt := range r.Routes {
			if rt == nil {
				continue
			}
			ones, _ := rt.Dst.Mask.Size()
			n.Routes = append(n.Routes, noteRoute{Dst: netip.PrefixFrom(addrOf(rt.Dst.IP), ones), Via: addrOf(rt.GW)})
		}
	}
	raw, err := coldjson.Marshal(&n)
	if err != nil {
		return nil, fmt.Errorf("encode note: %w", err)
	}
	return raw, nil
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// Names of the role, and of its host links: a rebuilt record does not name the role.
const (
	role       = "azure-vnet"
	linkPrefix = "azv"
)

// viewName changes with what derive makes.
const viewName = "azure-vnet/1"

// derive makes an attachment's text: a line of JSON, its group, and the endpoint's
// fields after its name, as they are in the file. It is empty for another role's
// attachment, and for one that is still being made.
func derive(a *store.Attachment) []byte {
	part := a.Part(role)
	if part == nil && !strings.HasPrefix(a.HostLink, linkPrefix) || part != nil && part.State == store.Pending {
		return nil
	}
	var n note
	if coldjson.Unmarshal(a.Note, &n) != nil {
		n = note{} // a rebuilt record has none
	}
	g := group{Mode: n.Mode, Master: n.Master, MAC: n.MasterMAC, Bridge: n.Bridge, Own: n.Own, VLAN: n.VLAN, Suffix: n.Suffix, Servers: n.Servers}
	for _, p := range a.Addresses {
		s := subnet{Prefix: p.Masked()}
		for _, gw := range n.Gateways {
			if p.Contains(gw) {
				s.Gateway = gw
			}
		}
		g.Subnets = append(g.Subnets, s)
	}
	head, err := coldjson.Marshal(&g)
	if err != nil {
		return nil
	}
	return append(append(head, '\n'), endpointText(a, &n)...)
}

// split is the inverse of what derive does.
func split(derived []byte) (head, body []byte) {
	head, body, _ = bytes.Cut(derived, []byte("\n"))
	return head, body
}

// endpointText has an endpoint's fields, without its Id, which comes before them.
func endpointText(a *store.Attachment, n *note) []byte {
	e := endpointInfo{
		IfName: a.IfName, HostIfName: a.HostLink, MacAddress: macOf(a.MAC), IPAddresses: convert(a.Addresses, netOf), Gateways: n.Gateways,
		DNS: dnsInfo{n.Suffix, n.Servers}, VlanID: n.VLAN, NetworkNameSpace: a.Netns.Path, ContainerID: a.ContainerID,
		Routes: convert(n.Routes, func(r noteRoute) routeInfo { return routeInfo{Dst: netOf(r.Dst), Gw: r.Via} }),
	}
	if ns, pod, ok := strings.Cut(a.Pod, "/"); ok {
		e.PODName, e.PODNameSpace = pod, ns
	}
	raw, err := coldjson.Marshal(&e)
	var out bytes.Buffer
	if err == nil {
		err = json.Indent(&out, raw, strings.TrimPrefix(memberLine, "\n"), "\t")
	}
	if err != nil {
		return nil
	}
	fields := bytes.TrimPrefix(bytes.TrimSuffix(out.Bytes(), []byte(memberLine+"}")), []byte("{"))
	return append([]byte(","), fields...)
}

// OwnOf are the node's own addresses when an attachment was made, and the interface into
// the cloud's network that had them, by the attachment's Note. Another role's Note has none.
func OwnOf(raw json.RawMessage) (master string, own []netip.Prefix) {
	var n note
	if coldjson.Unmarshal(raw, &n) != nil {
		return "", nil
	}
	return n.Master, n.Own
}
