package dhcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

const (
	serverPort6 = 547
	clientPort6 = 546
	// releaseTime bounds the wait for the answer to a release, whose content does not matter.
	releaseTime = time.Second
)

// client6 is a DHCPv6 client (RFC 8415) on one interface: one IA_NA with one
// address.
type client6 struct {
	*visit
	udp     *packets.UDP6
	profile *profile
	timing  Timing
}

func newClient6(ctx context.Context, v *visit, w *profile, t Timing) (*client6, error) {
	addr, err := v.net.EnsureLinkLocal(ctx, v.ns, v.link.Name)
	if err != nil {
		return nil, err
	}
	udp, err := packets.OpenUDP6(v.ns, v.link.Index, netip.AddrPortFrom(addr, clientPort6))
	if err != nil {
		return nil, err
	}
	return &client6{visit: v, udp: udp, profile: w, timing: t}, nil
}

func (c *client6) close() { _ = c.udp.Close() }

// acquire leases an address: Solicit, the first usable Advertise, Request, Reply. It
// does not wait for an Advertise with a higher preference. It requests want if that is
// valid. With only it refuses other addresses.
func (c *client6) acquire(ctx context.Context, want netip.Addr, only bool) (*store.DHCPGrant, error) {
	offer, err := c.exchange(ctx, c.message(dhcpv6.MessageTypeSolicit, nil, want))
	if err != nil {
		return nil, err
	}
	addr := address6(offer)
	if only && addr != want {
		return nil, fmt.Errorf("%w: the server offers %s instead of %s", errRefused, addr, want)
	}
	return c.request(ctx, c.message(dhcpv6.MessageTypeRequest, offer.Options.ServerID(), addr))
}

// renew extends the lease at the server that leased the address, rebind at any server, and confirm at
// any server after a restart of the daemon.
func (c *client6) renew(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	server, err := serverDUID(g)
	if err != nil {
		return nil, err
	}
	return c.request(ctx, c.message(dhcpv6.MessageTypeRenew, server, g.Address.Addr()))
}

func (c *client6) rebind(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	return c.request(ctx, c.message(dhcpv6.MessageTypeRebind, nil, g.Address.Addr()))
}

func (c *client6) confirm(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	return c.rebind(ctx, g)
}

// release releases the address. It waits shortly for the answer, so that a lost message
// is repeated.
func (c *client6) release(ctx context.Context, g *store.DHCPGrant) error {
	server, err := serverDUID(g)
	if err != nil {
		return err
	}
	c.timing.Request = releaseTime
	_, err = c.exchange(ctx, c.message(dhcpv6.MessageTypeRelease, server, g.Address.Addr()))
	return err
}

func serverDUID(g *store.DHCPGrant) (dhcpv6.DUID, error) {
	raw, err := hex.DecodeString(g.Server)
	if err != nil {
		return nil, err
	}
	return dhcpv6.DUIDFromBytes(raw)
}

// iaid returns the identifier of the client's only association, which depends on the
// identity alone.
func iaid(identity string) [4]byte {
	sum := sha256.Sum256([]byte(identity))
	return [4]byte(sum[16:20])
}

// message begins a message with a new transaction. It contains the address if that is
// valid.
func (c *client6) message(kind dhcpv6.MessageType, server dhcpv6.DUID, addr netip.Addr) *dhcpv6.Message {
	m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(duid(c.profile.identity)))
	if err != nil {
		panic(err) // random bytes do not fail
	}
	m.MessageType = kind
	if server != nil {
		m.AddOption(dhcpv6.OptServerID(server))
	}
	ia := &dhcpv6.OptIANA{IaId: iaid(c.profile.identity)}
	if addr.IsValid() {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: addr.AsSlice()})
	}
	m.AddOption(ia)
	if kind != dhcpv6.MessageTypeRelease {
		m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList))
	}
	return m
}

// request sends a message and returns the grant of the Reply.
func (c *client6) request(ctx context.Context, m *dhcpv6.Message) (*store.DHCPGrant, error) {
	start := time.Now()
	reply, err := c.exchange(ctx, m)
	if err != nil {
		return nil, err
	}
	addr := address6(reply)
	if !addr.IsValid() {
		return nil, fmt.Errorf("%w: %s", errRefused, status6(reply))
	}
	if want := address6(m); addr != want {
		return nil, fmt.Errorf("%w: the reply has %s instead of %s", errRefused, addr, want)
	}
	return c.profile.grant6(reply, addr, c.mac, start)
}

// exchange repeats a message until it is answered. An Advertise without an address is
// not an answer; a Reply without an address is one.
func (c *client6) exchange(ctx context.Context, m *dhcpv6.Message) (*dhcpv6.Message, error) {
	to := netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xff, 2, 13: 1, 15: 2}), serverPort6)
	start := time.Now()
	var answer *dhcpv6.Message
	first := firstDelay
	if m.MessageType == dhcpv6.MessageTypeSolicit {
		first = discoverDelay
	}
	err := c.timing.repeat(first).run(ctx, func(ctx context.Context) error {
		m.UpdateOption(dhcpv6.OptElapsedTime(min(time.Since(start), 0xffff*10*time.Millisecond)))
		return c.udp.Send(ctx, to, m.ToBytes())
	}, func(ctx context.Context) (bool, error) {
		d, err := c.udp.Receive(ctx)
		if err != nil {
			return false, err
		}
		if len(d.Payload) > maxMessage {
			return false, nil
		}
		in, err := dhcpv6.MessageFromBytes(d.Payload)
		if err != nil || !answers6(in, m) {
			return false, nil // not for us
		}
		answer = in
		return true, nil
	})
	return answer, err
}

// answers6 reports whether a message is a server's answer to a message of this client.
func answers6(in, to *dhcpv6.Message) bool {
	if in.TransactionID != to.TransactionID || in.Options.ServerID() == nil || in.Options.ClientID() == nil ||
		!bytes.Equal(in.Options.ClientID().ToBytes(), to.Options.ClientID().ToBytes()) {
		return false
	}
	if s := to.Options.ServerID(); s != nil && !bytes.Equal(s.ToBytes(), in.Options.ServerID().ToBytes()) {
		return false
	}
	if to.MessageType == dhcpv6.MessageTypeSolicit {
		return in.MessageType == dhcpv6.MessageTypeAdvertise && address6(in).IsValid()
	}
	return in.MessageType == dhcpv6.MessageTypeReply
}

// lease6 returns the first leased address of a message, and its association.
func lease6(m *dhcpv6.Message) (*dhcpv6.OptIANA, *dhcpv6.OptIAAddress) {
	for _, ia := range m.Options.IANA() {
		if s := ia.Options.Status(); s != nil && s.StatusCode != iana.StatusSuccess {
			continue
		}
		for _, a := range ia.Options.Addresses() {
			ok := a.Options.Status() == nil || a.Options.Status().StatusCode == iana.StatusSuccess
			given := a.ValidLifetime > 0 || (m.MessageType != dhcpv6.MessageTypeReply && m.MessageType != dhcpv6.MessageTypeAdvertise)
			if ip, valid := netip.AddrFromSlice(a.IPv6Addr); ok && given && valid && ip.Is6() && !ip.Is4In6() &&
				!ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
				return ia, a
			}
		}
	}
	return nil, nil
}

// address6 returns the first leased address of a message, or the zero Addr.
func address6(m *dhcpv6.Message) netip.Addr {
	_, a := lease6(m)
	if a == nil {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(a.IPv6Addr)
	return addr
}

// status6 returns the server's reason for a message without an address.
func status6(m *dhcpv6.Message) string {
	list := []*dhcpv6.OptStatusCode{m.Options.Status()}
	for _, ia := range m.Options.IANA() {
		list = append(list, ia.Options.Status())
	}
	i := slices.IndexFunc(list, func(s *dhcpv6.OptStatusCode) bool { return s != nil && s.StatusCode != iana.StatusSuccess })
	if i < 0 {
		return "the reply has no address"
	}
	return fmt.Sprintf("%s %q", list[i].StatusCode, list[i].StatusMessage)
}

// grant6 returns the grant of a Reply. Its prefix is the address alone, because on-link prefixes and
// routers come from router advertisements (RFC 5942).
func (w *profile) grant6(reply *dhcpv6.Message, addr netip.Addr, mac net.HardwareAddr, start time.Time) (*store.DHCPGrant, error) {
	ia, a := lease6(reply)
	g := &store.DHCPGrant{
		Family: protocol.IPv6, Address: netip.PrefixFrom(addr, addr.BitLen()), MAC: mac.String(),
		Server: hex.EncodeToString(reply.Options.ServerID().ToBytes()),
	}
	t1, t2 := ia.T1, ia.T2
	if preferred := min(a.PreferredLifetime, a.ValidLifetime); t1 == 0 && t2 == 0 && preferred > 0 && preferred < infinite {
		t1, t2 = preferred/2, preferred*4/5 // RFC 8415, section 14.2
	}
	setTimes(g, start, a.ValidLifetime, t1, t2)
	res := &roles.Result{CNIVersion: roles.ResultVersion, IPs: []*types100.IPConfig{{Address: roles.IPNet(g.Address)}}}
	for _, s := range reply.Options.DNS() {
		if ip, ok := netip.AddrFromSlice(s); ok && !ip.IsUnspecified() && !ip.IsMulticast() {
			res.DNS.Nameservers = append(res.DNS.Nameservers, ip.String())
		}
	}
	if search := reply.Options.DomainSearchList(); search != nil {
		res.DNS.Search = domains(search.Labels)
	}
	var err error
	g.Result, err = json.Marshal(res)
	return g, err
}
