package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
)

// VTEP is the backend data of vxlan for one family: the node's VXLAN tunnel endpoint.
type VTEP struct {
	// VNI is the tunnel's. NoVNI is true if the record has none, so that the configuration's applies.
	VNI   uint32
	NoVNI bool
	// Port is the UDP port, or 0 for the network's. flannel publishes none.
	Port uint16
	// MAC is a unicast address of six octets.
	MAC net.HardwareAddr
}

// rawVTEP is a VTEP in flannel's format, with Port.
type rawVTEP struct {
	VNI     *uint32 `json:",omitempty"`
	VtepMAC string
	Port    uint16 `json:",omitempty"`
}

// ParseVTEP decodes {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3","Port":8472}. Keys may be in any case, and VNI
// and Port may be absent. For "null" and empty data the error is ErrInvalid, because a node without data cannot be
// reached.
func ParseVTEP(data json.RawMessage) (VTEP, error) {
	var raw rawVTEP
	if d := bytes.TrimSpace(data); len(d) == 0 || string(d) == "null" {
		return VTEP{}, fmt.Errorf("%w: no backend data", ErrInvalid)
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return VTEP{}, fmt.Errorf(`backend data: %w: give {"VNI":1,"VtepMAC":"…"}: %w`, ErrInvalid, err)
	}
	mac, err := parseMAC(raw.VtepMAC)
	if err != nil {
		return VTEP{}, err
	}
	v := VTEP{MAC: mac, NoVNI: raw.VNI == nil, Port: raw.Port}
	if raw.VNI != nil {
		v.VNI = *raw.VNI
		if v.VNI > vniMax {
			return VTEP{}, fmt.Errorf("backend data: VNI is %d: %w: more than %d", v.VNI, ErrInvalid, vniMax)
		}
	}
	return v, nil
}

// parseMAC parses a peer's MAC address. Unlike net.ParseMAC it refuses InfiniBand
// addresses, and group addresses, which would reach every node.
func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("backend data: VtepMAC is %q: %w: give six octets", shorten(s), ErrInvalid)
	}
	if mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return nil, fmt.Errorf("backend data: VtepMAC is %s: %w: not a unicast address", mac, ErrInvalid)
	}
	return mac, nil
}

// Is reports whether the tunnel has this VNI.
func (v VTEP) Is(vni uint32) bool { return v.NoVNI || v.VNI == vni }

// JSON returns the backend data.
func (v VTEP) JSON() json.RawMessage {
	raw := rawVTEP{&v.VNI, v.MAC.String(), v.Port}
	if v.NoVNI {
		raw.VNI = nil
	}
	b, _ := json.Marshal(raw) // it has no value that JSON lacks
	return b
}
