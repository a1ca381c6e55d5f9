package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
)

// VTEP is vxlan's backend data of one family: where the tunnel ends.
type VTEP struct {
	// VNI is the tunnel's; NoVNI: the record does not tell it, and the
	// configuration's is meant.
	VNI   uint32
	NoVNI bool
	// MAC is six octets of a unicast address.
	MAC net.HardwareAddr
}

// ParseVTEP decodes {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}, with keys in any
// case and VNI left out or not. "null" and nothing at all are ErrInvalid: a node
// without data cannot be reached.
func ParseVTEP(data json.RawMessage) (VTEP, error) {
	var raw struct {
		VNI     *uint32
		VtepMAC string
	}
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
	v := VTEP{MAC: mac, NoVNI: raw.VNI == nil}
	if raw.VNI != nil {
		if v.VNI = *raw.VNI; v.VNI > vniMax {
			return VTEP{}, fmt.Errorf("backend data: VNI is %d: %w: more than %d", v.VNI, ErrInvalid, vniMax)
		}
	}
	return v, nil
}

// parseMAC takes what a peer can have: net.ParseMAC would take InfiniBand's
// addresses too, and group addresses, which would reach every node.
func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("backend data: VtepMAC is %q: %w: give six octets", shorten(s), ErrInvalid)
	}
	if mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return nil, fmt.Errorf("backend data: VtepMAC is %s: %w: not an address of one device", mac, ErrInvalid)
	}
	return mac, nil
}

// Is tells whether the tunnel has this VNI.
func (v VTEP) Is(vni uint32) bool { return v.NoVNI || v.VNI == vni }

// JSON is the record, as flannel writes it.
func (v VTEP) JSON() json.RawMessage {
	if v.NoVNI {
		return fmt.Appendf(nil, `{"VtepMAC":%q}`, v.MAC)
	}
	return fmt.Appendf(nil, `{"VNI":%d,"VtepMAC":%q}`, v.VNI, v.MAC)
}
