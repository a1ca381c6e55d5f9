package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// vniMax is the largest VNI (24 bits, RFC 7348 §5). mtuMax is the largest length in an IPv4 header.
// mtuMin is the smallest MTU of a link with IPv6 (RFC 8200 §5).
const (
	vniMax = 1<<24 - 1
	mtuMax = 65535
	mtuMin = 1280
)

// ParseConfig decodes net-conf.json. Keys are flannel's, in any case. The default Backend is vxlan, as
// flannel's documentation defines it. The warnings name keys without effect. The error joins all
// faults. Each of them is an ErrInvalid that names its key. Lengths and bounds of subnets are not
// checked and have no defaults.
func ParseConfig(data []byte) (c *Config, warnings []string, err error) {
	return parse(data, false)
}

// ParseSubnetConfig is ParseConfig for a registry that assigns subnets. It checks the lengths and
// bounds of subnets and sets flannel's defaults.
func ParseSubnetConfig(data []byte) (c *Config, warnings []string, err error) {
	return parse(data, true)
}

// rawConfig has a raw value for each known key. The values are decoded one by one, so that all faults
// are found.
type rawConfig struct {
	EnableIPv4, EnableIPv6, EnableNFTables   json.RawMessage
	Network, SubnetLen, SubnetMin, SubnetMax json.RawMessage
	IPv6Network, IPv6SubnetLen               json.RawMessage
	IPv6SubnetMin, IPv6SubnetMax             json.RawMessage
	Backend                                  json.RawMessage
}

// rawBackend is the Backend object. MacPrefix and Name are keys of the Windows
// backend.
type rawBackend struct {
	Type, VNI, Port, GBP, Learning, DirectRouting, MTU json.RawMessage
	TxChecksumOffload                                  json.RawMessage
	MacPrefix, Name                                    json.RawMessage
	ListenPort, ListenPortV6, PSK, Mode                json.RawMessage
	PersistentKeepaliveInterval                        json.RawMessage
}

func parse(data []byte, subnets bool) (*Config, []string, error) {
	var raw rawConfig
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, nil, fmt.Errorf("decode network configuration: %w: %w", ErrInvalid, err)
	}
	d := &decoder{}
	c := &Config{EnableIPv4: true, Backend: Backend{Type: "vxlan", VNI: 1}}
	d.value("EnableIPv4", raw.EnableIPv4, &c.EnableIPv4)
	d.value("EnableIPv6", raw.EnableIPv6, &c.EnableIPv6)
	d.value("SubnetLen", raw.SubnetLen, &c.SubnetLen)
	d.value("IPv6SubnetLen", raw.IPv6SubnetLen, &c.IPv6SubnetLen)
	d.prefix("Network", raw.Network, &c.Network, netip.Addr.Is4)
	d.prefix("IPv6Network", raw.IPv6Network, &c.IPv6Network, isIPv6)
	d.addr("SubnetMin", raw.SubnetMin, &c.SubnetMin, netip.Addr.Is4)
	d.addr("SubnetMax", raw.SubnetMax, &c.SubnetMax, netip.Addr.Is4)
	d.addr("IPv6SubnetMin", raw.IPv6SubnetMin, &c.IPv6SubnetMin, isIPv6)
	d.addr("IPv6SubnetMax", raw.IPv6SubnetMax, &c.IPv6SubnetMax, isIPv6)
	d.backend(raw.Backend, &c.Backend)
	switch {
	case d.failed("EnableIPv4", "EnableIPv6", "Network", "IPv6Network"):
	case !c.EnableIPv4 && !c.EnableIPv6:
		d.fault("EnableIPv4", "and EnableIPv6 are false: one family is needed")
	default:
		if c.EnableIPv4 && !c.Network.IsValid() {
			d.fault("Network", `is missing: give the pods' IPv4 network, as "10.244.0.0/16", or set EnableIPv4 to false`)
		}
		if c.EnableIPv6 && !c.IPv6Network.IsValid() {
			d.fault("IPv6Network", `is missing: give the pods' IPv6 network, as "fd00:10:244::/48", or set EnableIPv6 to false`)
		}
	}
	if subnets {
		if c.EnableIPv4 && c.Network.IsValid() && !d.failed("SubnetLen", "SubnetMin", "SubnetMax") {
			d.subnets(family{"", 24, 30}, c.Network, &c.SubnetLen, &c.SubnetMin, &c.SubnetMax)
		}
		if c.EnableIPv6 && c.IPv6Network.IsValid() && !d.failed("IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax") {
			d.subnets(family{"IPv6", 64, 126}, c.IPv6Network, &c.IPv6SubnetLen, &c.IPv6SubnetMin, &c.IPv6SubnetMax)
		}
	}
	if len(d.faults) > 0 {
		return nil, nil, fmt.Errorf("network configuration: %w", errors.Join(d.faults...))
	}
	warnings := unknown("", data, "EnableIPv4", "EnableIPv6", "EnableNFTables", "Network", "SubnetLen", "SubnetMin", "SubnetMax",
		"IPv6Network", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax", "Backend")
	keys := []string{"Type", "VNI", "Port", "GBP", "Learning", "DirectRouting", "MTU", "TxChecksumOffload", "MacPrefix", "Name"}
	if c.Backend.Type == "wireguard" {
		keys = []string{"Type", "MTU", "ListenPort", "ListenPortV6", "PSK", "Mode", "PersistentKeepaliveInterval"}
	}
	return c, append(warnings, unknown("Backend.", raw.Backend, keys...)...), nil
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// decoder collects the faults of a configuration.
type decoder struct {
	faults []error
	keys   []string
}

func (d *decoder) fault(key, format string, args ...any) {
	d.keys = append(d.keys, key)
	d.faults = append(d.faults, fmt.Errorf("%w: %s %s", ErrInvalid, key, fmt.Sprintf(format, args...)))
}

func (d *decoder) failed(keys ...string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(d.keys, k) })
}

// value decodes a value that is neither absent nor null.
func (d *decoder) value(key string, raw json.RawMessage, v any) bool {
	if len(raw) == 0 || string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, v); err == nil {
		return true
	}
	shown := shorten(string(raw))
	if _, ok := v.(*rawBackend); ok {
		shown = "not an object" // it may contain the preshared key
	}
	d.fault(key, "is %s: %s", shown, wanted(v))
	return false
}

func wanted(v any) string {
	switch v.(type) {
	case *bool:
		return "give true or false"
	case *string:
		return "give a string"
	case *int:
		return "give a whole number"
	default:
		return "give an object"
	}
}

func (d *decoder) prefix(key string, raw json.RawMessage, p *netip.Prefix, is func(netip.Addr) bool) {
	var s string
	if !d.value(key, raw, &s) || s == "" {
		return
	}
	got, err := netip.ParsePrefix(s)
	if err != nil || !is(got.Addr()) {
		d.fault(key, "is %q: give a network of its family, as %s", shorten(s), exampleOf(is))
		return
	}
	*p = got.Masked()
}

func exampleOf(is func(netip.Addr) bool) string {
	if is(netip.IPv4Unspecified()) {
		return `"10.244.0.0/16"`
	}
	return `"fd00:10:244::/48"`
}

func (d *decoder) addr(key string, raw json.RawMessage, a *netip.Addr, is func(netip.Addr) bool) {
	var s string
	if !d.value(key, raw, &s) || s == "" {
		return
	}
	got, err := netip.ParseAddr(s)
	if err != nil || !is(got) || got.Zone() != "" {
		d.fault(key, "is %q: give an address of its network's family", shorten(s))
		return
	}
	*a = got
}

// number decodes a whole number between low and high.
func (d *decoder) number(key string, raw json.RawMessage, low, high int, set func(int)) {
	var n int
	if !d.value(key, raw, &n) {
		return
	}
	if n < low || n > high {
		d.fault(key, "is %d: give %d to %d", n, low, high)
		return
	}
	set(n)
}

func (d *decoder) backend(data json.RawMessage, b *Backend) {
	var raw rawBackend
	if !d.value("Backend", data, &raw) {
		return
	}
	d.value("Backend.Type", raw.Type, &b.Type)
	b.Type = strings.ToLower(b.Type)
	switch b.Type {
	case "":
		b.Type = "vxlan"
	case "vxlan", "host-gw", "wireguard":
	default:
		d.fault("Backend.Type", "is %q: give vxlan, host-gw or wireguard, no other backend is supported", shorten(b.Type))
	}
	d.number("Backend.VNI", raw.VNI, 0, vniMax, func(n int) { b.VNI = uint32(n) })
	d.number("Backend.Port", raw.Port, 0, 65535, func(n int) { b.Port = uint16(n) })
	d.number("Backend.MTU", raw.MTU, 0, mtuMax, func(n int) {
		if n != 0 && n < mtuMin {
			d.fault("Backend.MTU", "is %d: give 0 for the interface's, or %d to %d", n, mtuMin, mtuMax)
		}
		b.MTU = n
	})
	d.value("Backend.GBP", raw.GBP, &b.GBP)
	d.value("Backend.Learning", raw.Learning, &b.Learning)
	d.value("Backend.DirectRouting", raw.DirectRouting, &b.DirectRouting)
	var offload bool
	if d.value("Backend.TxChecksumOffload", raw.TxChecksumOffload, &offload) {
		b.TxChecksum = Switch(offload)
	}
	if b.Type == "wireguard" {
		d.wireGuard(&raw, b)
	}
}

// wireGuard decodes the keys of the backend wireguard. An error does not contain the preshared key.
func (d *decoder) wireGuard(raw *rawBackend, b *Backend) {
	b.ListenPort, b.ListenPortV6 = 51820, 51821
	d.number("Backend.ListenPort", raw.ListenPort, 1, 65535, func(n int) { b.ListenPort = uint16(n) })
	d.number("Backend.ListenPortV6", raw.ListenPortV6, 1, 65535, func(n int) { b.ListenPortV6 = uint16(n) })
	d.number("Backend.PersistentKeepaliveInterval", raw.PersistentKeepaliveInterval, 0, 65535, func(n int) { b.Keepalive = uint16(n) })
	var mode string
	d.value("Backend.Mode", raw.Mode, &mode)
	switch mode {
	case "", "separate":
		if b.ListenPort == b.ListenPortV6 {
			d.fault("Backend.ListenPortV6", "is the same as Backend.ListenPort: give each family a port")
		}
	case ModeAuto, ModeIPv4, ModeIPv6:
		b.Mode = mode
	default:
		d.fault("Backend.Mode", "is %q: give separate, auto, ipv4 or ipv6", shorten(mode))
	}
	if len(raw.PSK) == 0 || string(raw.PSK) == "null" {
		return
	}
	var psk string
	key, err := "", json.Unmarshal(raw.PSK, &psk)
	if err == nil && psk != "" {
		key, err = parseKey(psk)
	}
	if err != nil {
		d.fault("Backend.PSK", "is not a key: give 32 bytes in base64, as 'wg genpsk' prints them")
	}
	b.PSK = key
}

// unknown returns a warning for each key of an object that is not among known, in the
// order of keys. The comparison ignores case, as encoding/json does.
func unknown(at string, data []byte, known ...string) []string {
	var all map[string]json.RawMessage
	if len(data) == 0 || json.Unmarshal(data, &all) != nil {
		return nil
	}
	var out []string
	for key := range all {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			out = append(out, fmt.Sprintf("%s%s is not a key of the network configuration: it has no effect", at, shorten(key)))
		}
	}
	slices.Sort(out)
	return out
}

// shorten bounds the length of a quoted value in a message.
func shorten(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
