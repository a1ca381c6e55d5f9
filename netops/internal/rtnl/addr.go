package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Addr is an address of a link.
type Addr struct {
	Link   int
	Prefix netip.Prefix
	Flags  uint32
	Scope  uint8 // RT_SCOPE_*
}

// Addresses reads the addresses of one link, or of all links for index 0.
func (c *Conn) Addresses(ctx context.Context, index int) ([]Addr, error) {
	m := nlconn.Message{Kind: unix.RTM_GETADDR, Body: addrHeader(unix.AF_UNSPEC, 0, index)}
	all, err := nlconn.List(ctx, c.Conn, m, func(data []byte) (Addr, bool, error) {
		a, ok, err := ParseAddr(data)
		return a, ok && (index == 0 || a.Link == index), err
	})
	return all, nlconn.Explain(err, "list addresses")
}

// addrHeader returns struct ifaddrmsg.
func addrHeader(family uint8, bits, link int) nlconn.Body {
	return binary.NativeEndian.AppendUint32([]byte{family, uint8(bits), 0, 0}, uint32(link))
}

// Message returns the request that adds the address, or with RTM_DELADDR deletes it. An address
// that the link has already is an error.
func (a *Addr) Message(kind uint16) nlconn.Message {
	addr := a.Prefix.Addr()
	m := nlconn.Message{Kind: kind, Body: addrHeader(Family(addr), a.Prefix.Bits(), a.Link)}
	attrs := []nlconn.Attr{{Kind: unix.IFA_LOCAL, At: &addr}, {Kind: unix.IFA_ADDRESS, At: &addr}}
	if kind == unix.RTM_NEWADDR {
		m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		last := broadcast(a.Prefix)
		attrs = append(attrs, nlconn.Attr{Kind: unix.IFA_FLAGS, At: &a.Flags}, nlconn.Attr{Kind: unix.IFA_BROADCAST, At: &last})
	}
	m.Attrs(attrs)
	return m
}

// Limited returns the request that adds the address for some seconds, or changes the lifetime of the one that the link has. The
// address is deprecated: the host chooses it for no packets of its own.
func (a *Addr) Limited(seconds uint32) nlconn.Message {
	m := a.Message(unix.RTM_NEWADDR)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	info := binary.NativeEndian.AppendUint32(make([]byte, 4), seconds) // struct ifa_cacheinfo: preferred and valid time, …
	m.Bytes(unix.IFA_CACHEINFO, append(info, make([]byte, 8)...))
	return m
}

// broadcast returns the last address of an IPv4 subnet. A /31 or /32 (RFC 3021) and an IPv6 subnet
// have no broadcast address.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() >= 31 {
		return netip.Addr{}
	}
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|(1<<(32-p.Bits())-1))
	return netip.AddrFrom4(b)
}

// ParseAddr reads the body of RTM_NEWADDR. It prefers IFA_LOCAL, because on a
// point-to-point link IFA_ADDRESS is the peer's address.
func ParseAddr(b []byte) (a Addr, ok bool, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, false, fmt.Errorf("address message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	a.Flags, a.Scope, a.Link = uint32(b[2]), b[3], int(binary.NativeEndian.Uint32(b[4:]))
	var local, address netip.Addr
	err = nlconn.ReadAttrs(b[unix.SizeofIfAddrmsg:], []nlconn.Attr{
		{Kind: unix.IFA_LOCAL, At: &local}, {Kind: unix.IFA_ADDRESS, At: &address}, {Kind: unix.IFA_FLAGS, At: &a.Flags},
	})
	if !local.IsValid() {
		local = address
	}
	a.Prefix = netip.PrefixFrom(local, int(b[1]))
	return a, err == nil && a.Prefix.IsValid(), err
}
