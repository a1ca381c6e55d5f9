package overlay

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// WireGuard's generic netlink family (WG_GENL_NAME and WG_GENL_VERSION of
// linux/wireguard.h).
const (
	wgFamilyName = "wireguard"
	wgVersion    = 1
)

// Key is a public key of WireGuard (Curve25519).
type Key [32]byte

// Secret is a private or preshared key of WireGuard. It is never printed.
type Secret [32]byte

// Format implements fmt.Formatter for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("(secret)")) }

// MarshalText implements encoding.TextMarshaler, which JSON and log/slog use.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

// ParseKey reads a public key in base64.
func ParseKey(text string) (k Key, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(k) || Key(b) == (Key{}) {
		return k, fmt.Errorf("public key %.60q: %w: it is not 32 bytes in base64", text, nlconn.ErrInvalid)
	}
	return Key(b), nil
}

// String returns the key in base64.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// wgPeer is a peer of a WireGuard device.
type wgPeer struct {
	endpoint  netip.AddrPort
	psk       Secret
	keepalive uint16
	// allowed are the networks of IPv4 and IPv6 that the peer sends from and receives
	// for. A network is the zero Prefix if the peer has none or several of the family.
	allowed [2]netip.Prefix
	// handshake, received and sent are only read.
	handshake      time.Time
	received, sent uint64
}

// wgDevice is the configuration of a WireGuard device as the kernel reports it.
type wgDevice struct {
	privateKey Secret
	port       uint16
	peers      map[Key]wgPeer
	// networks counts the allowed networks of each peer by family.
	networks map[Key][2]int
}

// peerBody appends a request that sets or removes one peer. A request with one peer
// needs no division, and the kernel's refusal concerns that peer only.
func (op *kernelOp) peerBody(b nlconn.Body) nlconn.Body {
	b = append(b, nlconn.NewGeneric(0, unix.WG_CMD_SET_DEVICE, wgVersion).Body...)
	b.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(op.link))
	b.Nest(unix.WGDEVICE_A_PEERS, func() {
		b.Nest(0, func() {
			b.Bytes(unix.WGPEER_A_PUBLIC_KEY, op.key[:])
			if op.del {
				b.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REMOVE_ME)
				return
			}
			op.wg.append(&b)
		})
	})
	return b
}

// append appends the attributes of a peer. Without an endpoint the peer keeps the one
// that it has.
func (p *wgPeer) append(b *nlconn.Body) {
	b.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REPLACE_ALLOWEDIPS)
	b.Bytes(unix.WGPEER_A_PRESHARED_KEY, p.psk[:])
	if p.endpoint.IsValid() {
		b.Bytes(unix.WGPEER_A_ENDPOINT, sockaddr(p.endpoint))
	}
	b.Uint16(unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, p.keepalive)
	b.Nest(unix.WGPEER_A_ALLOWEDIPS, func() {
		for _, n := range p.allowed {
			if !n.IsValid() {
				continue
			}
			b.Nest(0, func() {
				b.Uint16(unix.WGALLOWEDIP_A_FAMILY, uint16(rtnl.Family(n.Addr())))
				b.Bytes(unix.WGALLOWEDIP_A_IPADDR, n.Addr().AsSlice())
				b.Uint8(unix.WGALLOWEDIP_A_CIDR_MASK, uint8(n.Bits()))
			})
		}
	})
}

// sockaddr returns struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(rtnl.Family(a.Addr())))
	b = binary.BigEndian.AppendUint16(b, a.Port())
	if a.Addr().Is4() {
		return append(append(b, a.Addr().AsSlice()...), make([]byte, 8)...)
	}
	b = append(append(b, 0, 0, 0, 0), a.Addr().AsSlice()...) // the flow label first
	return append(b, 0, 0, 0, 0)                             // the scope
}

// parse reads one message of WG_CMD_GET_DEVICE. A device with many peers takes several
// messages, and a peer with many allowed networks too.
func (d *wgDevice) parse(b []byte) error {
	if len(b) < nlconn.GenericHeader {
		return fmt.Errorf("WireGuard message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	key, peers := d.privateKey[:], []byte(nil)
	err := nlconn.ReadAttrs(b[nlconn.GenericHeader:], []nlconn.Attr{
		{Kind: unix.WGDEVICE_A_PRIVATE_KEY, At: &key}, {Kind: unix.WGDEVICE_A_LISTEN_PORT, At: &d.port}, {Kind: unix.WGDEVICE_A_PEERS, At: &peers},
	})
	copy(d.privateKey[:], key)
	if err != nil {
		return err
	}
	return nlconn.EachAttr(peers, func(_ uint16, v []byte) error { return d.parsePeer(v) })
}

func (d *wgDevice) parsePeer(b []byte) error {
	raw, err := nlconn.Find(b, unix.WGPEER_A_PUBLIC_KEY)
	if err != nil || len(raw) != len(Key{}) {
		return fmt.Errorf("WireGuard peer with a key of %d bytes: %w", len(raw), unix.EBADMSG)
	}
	key := Key(raw)
	p := d.peers[key]
	var psk, endpoint, handshake, allowed []byte
	err = nlconn.ReadAttrs(b, []nlconn.Attr{
		{Kind: unix.WGPEER_A_PRESHARED_KEY, At: &psk},
		{Kind: unix.WGPEER_A_ENDPOINT, At: &endpoint},
		{Kind: unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, At: &p.keepalive},
		{Kind: unix.WGPEER_A_LAST_HANDSHAKE_TIME, At: &handshake},
		{Kind: unix.WGPEER_A_RX_BYTES, At: &p.received},
		{Kind: unix.WGPEER_A_TX_BYTES, At: &p.sent},
		{Kind: unix.WGPEER_A_ALLOWEDIPS, At: &allowed},
	})
	copy(p.psk[:], psk)
	if endpoint != nil {
		p.endpoint = rtnl.ParseSockaddr(endpoint)
	}
	if sec := int64(nlconn.Long(handshake)); sec > 0 && len(handshake) >= 16 { // struct __kernel_timespec
		p.handshake = time.Unix(sec, int64(nlconn.Long(handshake[8:]))).UTC()
	}
	if err == nil {
		err = nlconn.EachAttr(allowed, func(_ uint16, v []byte) error {
			network, err := parseAllowed(v)
			i, count := familyIndex(network), d.networks[key]
			count[i]++
			p.allowed[i], d.networks[key] = network, count
			return err
		})
	}
	for i, n := range d.networks[key] {
		if n > 1 {
			p.allowed[i] = netip.Prefix{}
		}
	}
	d.peers[key] = p
	return err
}

// familyIndex returns the index of a network in allowed.
func familyIndex(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}

func parseAllowed(b []byte) (p netip.Prefix, err error) {
	var addr netip.Addr
	var bits uint8
	err = nlconn.ReadAttrs(b, []nlconn.Attr{{Kind: unix.WGALLOWEDIP_A_IPADDR, At: &addr}, {Kind: unix.WGALLOWEDIP_A_CIDR_MASK, At: &bits}})
	return netip.PrefixFrom(addr, int(bits)), err
}
