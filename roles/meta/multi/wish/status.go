package wish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
)

// Attachment is a network that a pod is attached to.
type Attachment struct {
	// Name is "namespace/name" of the network's object, or else the name of its configuration.
	Name string
	// Default is true for the cluster's default network.
	Default bool
	// IfName is the requested interface name.
	IfName string
	// Result is the result of the network's ADD. If it is nil the status has the name only.
	Result *roles.Result
	// DeviceInfo is the JSON object of a device information file, or nil.
	DeviceInfo json.RawMessage
	// DefaultRoute are the gateways that the annotation requests.
	DefaultRoute []netip.Addr
}

// statusElement is one element of the value of StatusKey (the standard, section 5.3). mtu and gateway are
// Multus's additions.
type statusElement struct {
	Name         string          `json:"name"`
	Interface    string          `json:"interface,omitempty"`
	IPs          []string        `json:"ips,omitempty"`
	MAC          string          `json:"mac,omitempty"`
	MTU          int             `json:"mtu,omitempty"`
	Default      bool            `json:"default,omitempty"`
	DNS          dns             `json:"dns"`
	DeviceInfo   json.RawMessage `json:"device-info,omitempty"`
	Gateway      []string        `json:"gateway,omitempty"`
	DefaultRoute []netip.Addr    `json:"default-route,omitempty"`
}

// dns is types.DNS with the keys of this document.
type dns struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Status returns the value of StatusKey: a JSON list with one element for each attachment, in
// order. It is indented like Multus's, because people read it. Addresses have no prefix length, as
// in Multus's.
func Status(attachments []Attachment) ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('[')
	for i, a := range attachments {
		raw, err := coldjson.Marshal(a.element())
		if err != nil {
			return nil, fmt.Errorf("network status of %s: %w", a.Name, err)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		if err := json.Indent(&out, raw, "", "    "); err != nil {
			return nil, fmt.Errorf("network status of %s: %w", a.Name, err)
		}
	}
	out.WriteByte(']')
	return out.Bytes(), nil
}

func (a *Attachment) element() *statusElement {
	s := &statusElement{Name: a.Name, Default: a.Default, DeviceInfo: a.DeviceInfo, DefaultRoute: a.DefaultRoute}
	if a.Result == nil {
		return s
	}
	s.DNS = dns(a.Result.DNS)
	s.Interface = a.IfName
	inside := -1
	for i, link := range a.Result.Interfaces {
		if link != nil && link.Sandbox != "" {
			s.Interface, s.MAC, s.MTU, inside = link.Name, link.Mac, link.Mtu, i
			break
		}
	}
	for _, ip := range a.Result.IPs {
		if ip != nil && ip.Address.IP != nil && (inside < 0 || ip.Interface == nil || *ip.Interface == inside) {
			s.IPs = append(s.IPs, ip.Address.IP.String())
		}
	}
	for _, r := range a.Result.Routes {
		if r != nil && isDefault(r) && r.GW != nil {
			s.Gateway = append(s.Gateway, r.GW.String())
		}
	}
	return s
}

func isDefault(r *types.Route) bool {
	ones, bits := r.Dst.Mask.Size()
	return ones == 0 && bits > 0 && r.Dst.IP.IsUnspecified()
}
