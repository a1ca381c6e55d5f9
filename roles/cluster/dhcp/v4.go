package dhcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

const (
	serverPort4 = 67
	clientPort4 = 68
	// maxMessage is the size of the largest IP packet that is accepted. Servers get it in option 57.
	// Domain names may be compressed (RFC 1035, section 4.1.4), and the time to decode a hostile list
	// of them grows with the cube of its size: 0.1 s for this size, minutes for the largest UDP
	// packet.
	maxMessage = 1500
)

// errRefused means that the server refuses to lease the address, or to extend the lease.
var errRefused = errors.New("the server refused the address")

// client4 is a DHCPv4 client (RFC 2131) on one interface.
type client4 struct {
	*visit
	udp     *packets.RawUDP
	profile *profile
	timing  Timing
	// broadcast requests answers by broadcast.
	broadcast bool
}

// profile is what a client sends about itself and requests.
type profile struct {
	conf     *protocol.Conf
	identity string
	options  []protocol.Option
	log      *slog.Logger
	// logged limits the log to the unusual routes of the first answer; later answers
	// repeat them.
	logged sync.Once
}

func newClient4(v *visit, w *profile, t Timing, broadcast bool) (*client4, error) {
	udp, err := packets.OpenRawUDP(v.ns, v.link.Index, clientPort4)
	if err != nil {
		return nil, err
	}
	// A unicast answer does not reach an ipvlan before its IP address is set, because
	// all ipvlans of a parent share one hardware address.
	return &client4{visit: v, udp: udp, profile: w, timing: t, broadcast: broadcast || v.link.Kind == kindIPvlan}, nil
}

func (c *client4) close() { c.udp.Close() }

// acquire leases an address: DHCPDISCOVER, the first usable DHCPOFFER, DHCPREQUEST,
// DHCPACK. It requests want if that is valid. With only it refuses other addresses.
func (c *client4) acquire(ctx context.Context, want netip.Addr, only bool) (*store.DHCPGrant, error) {
	discover := c.message(dhcpv4.MessageTypeDiscover)
	if want.IsValid() {
		discover.UpdateOption(dhcpv4.OptRequestedIPAddress(want.AsSlice()))
	}
	offer, err := c.exchange(ctx, discover, toAll4(), nil, anyServer)
	if err != nil {
		return nil, err
	}
	if only && !offer.YourIPAddr.Equal(want.AsSlice()) {
		return nil, fmt.Errorf("%w: %s offers %s instead of %s", errRefused, offer.ServerIdentifier(), offer.YourIPAddr, want)
	}
	request := c.message(dhcpv4.MessageTypeRequest)
	request.TransactionID = discover.TransactionID
	request.UpdateOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))
	request.UpdateOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier()))
	return c.request(ctx, request, toAll4(), nil, offer.ServerIdentifier())
}

// renew extends the lease at the server that leased the address (RENEWING), rebind at any server
// (REBINDING), and confirm at any server after a restart of the daemon (INIT-REBOOT).
func (c *client4) renew(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	server, err := netip.ParseAddr(g.Server)
	if err != nil {
		return nil, err
	}
	mac, _ := net.ParseMAC(g.ServerMAC) // without an address the message is broadcast
	request := c.message(dhcpv4.MessageTypeRequest)
	request.ClientIPAddr = g.Address.Addr().AsSlice()
	return c.request(ctx, request, netip.AddrPortFrom(server, serverPort4), mac, server.AsSlice())
}

func (c *client4) rebind(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	request := c.message(dhcpv4.MessageTypeRequest)
	request.ClientIPAddr = g.Address.Addr().AsSlice()
	return c.request(ctx, request, toAll4(), nil, anyServer)
}

func (c *client4) confirm(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error) {
	request := c.message(dhcpv4.MessageTypeRequest)
	request.UpdateOption(dhcpv4.OptRequestedIPAddress(g.Address.Addr().AsSlice()))
	return c.request(ctx, request, toAll4(), nil, anyServer)
}

// release releases the address. Servers do not answer.
func (c *client4) release(ctx context.Context, g *store.DHCPGrant) error {
	server, m, err := c.profile.releaseMessage(g)
	if err != nil {
		return err
	}
	mac, _ := net.ParseMAC(g.ServerMAC)
	return c.udp.Send(ctx, g.Address.Addr(), server, mac, m)
}

// releaseFromHost releases an address whose interface no longer exists. The message has the client's
// hardware address and identifier. It reaches the server if the host has a route to it.
func (w *profile) releaseFromHost(ctx context.Context, g *store.DHCPGrant) error {
	server, m, err := w.releaseMessage(g)
	if err != nil {
		return err
	}
	d := net.Dialer{LocalAddr: &net.UDPAddr{Port: clientPort4}}
	conn, err := d.DialContext(ctx, "udp4", server.String())
	if errors.Is(err, unix.EADDRINUSE) { // a DHCP client of the host has the port; any other port works, too
		conn, err = new(net.Dialer).DialContext(ctx, "udp4", server.String())
	}
	if err != nil {
		return err
	}
	_, err = conn.Write(m)
	return errors.Join(err, conn.Close())
}

func (w *profile) releaseMessage(g *store.DHCPGrant) (server netip.AddrPort, message []byte, err error) {
	addr, err := netip.ParseAddr(g.Server)
	if err != nil {
		return server, nil, err
	}
	mac, err := net.ParseMAC(g.MAC)
	if err != nil {
		return server, nil, err
	}
	m := w.message4(dhcpv4.MessageTypeRelease, mac)
	m.ClientIPAddr = g.Address.Addr().AsSlice()
	m.UpdateOption(dhcpv4.OptServerIdentifier(addr.AsSlice()))
	return netip.AddrPortFrom(addr, serverPort4), m.ToBytes(), nil
}

// message begins a message that requests something.
func (c *client4) message(kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	m := c.profile.message4(kind, c.mac)
	if c.broadcast {
		m.SetBroadcast()
	}
	m.UpdateOption(dhcpv4.OptMaxMessageSize(maxMessage))
	if codes := c.profile.conf.Requested(); len(codes) > 0 {
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionParameterRequestList, codes))
	}
	return m
}

// message4 begins a message with a new transaction.
func (w *profile) message4(kind dhcpv4.MessageType, mac net.HardwareAddr) *dhcpv4.DHCPv4 {
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(kind))
	if err != nil {
		panic(err) // random bytes do not fail
	}
	m.UpdateOption(dhcpv4.OptClientIdentifier(clientID(w.identity)))
	for _, o := range w.options {
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(o.Code), o.Value))
	}
	return m
}

// anyServer accepts an answer of every server.
var anyServer net.IP //nolint:gochecknoglobals // a nil with a name

func toAll4() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), serverPort4)
}

// request sends a DHCPREQUEST and returns the grant of the DHCPACK.
func (c *client4) request(ctx context.Context, m *dhcpv4.DHCPv4, to netip.AddrPort, mac net.HardwareAddr, server net.IP) (*store.DHCPGrant, error) {
	start := time.Now()
	ack, err := c.exchange(ctx, m, to, mac, server)
	if err != nil {
		return nil, err
	}
	if ack.MessageType() == dhcpv4.MessageTypeNak {
		return nil, fmt.Errorf("%w: DHCPNAK from %s %q", errRefused, ack.ServerIdentifier(), ack.Message())
	}
	want := m.ClientIPAddr
	if want == nil || want.IsUnspecified() {
		want = m.RequestedIPAddress()
	}
	if !ack.YourIPAddr.Equal(want) {
		return nil, fmt.Errorf("%w: %s acknowledged %s instead of %s", errRefused, ack.ServerIdentifier(), ack.YourIPAddr, want)
	}
	return c.profile.grant4(ack, start)
}

// reply is a received message and the hardware address of its sender.
type reply struct {
	*dhcpv4.DHCPv4
	mac net.HardwareAddr
}

// exchange repeats a message until a server answers it. If server is set, other servers' answers are
// ignored.
func (c *client4) exchange(ctx context.Context, m *dhcpv4.DHCPv4, to netip.AddrPort, mac net.HardwareAddr, server net.IP) (*reply, error) {
	from, ok := netip.AddrFromSlice(m.ClientIPAddr.To4())
	if !ok {
		from = netip.IPv4Unspecified()
	}
	start := time.Now()
	var answer *reply
	first := firstDelay
	if m.MessageType() == dhcpv4.MessageTypeDiscover {
		first = discoverDelay
	}
	err := c.timing.repeat(first).run(ctx, func(ctx context.Context) error {
		m.NumSeconds = uint16(min(time.Since(start)/time.Second, 1<<16-1))
		return c.udp.Send(ctx, from, to, mac, m.ToBytes())
	}, func(ctx context.Context) (bool, error) {
		d, err := c.udp.Receive(ctx)
		if err != nil {
			return false, err
		}
		if len(d.Payload) > maxMessage {
			return false, nil
		}
		in, err := dhcpv4.FromBytes(d.Payload)
		if err != nil || !answers4(in, m) || (server != nil && !in.ServerIdentifier().Equal(server)) {
			return false, nil // not for us
		}
		answer = &reply{DHCPv4: in, mac: d.MAC}
		return true, nil
	})
	return answer, err
}

// answers4 reports whether a message is a server's answer to a message of this client.
func answers4(in, to *dhcpv4.DHCPv4) bool {
	if in.OpCode != dhcpv4.OpcodeBootReply || in.TransactionID != to.TransactionID || !bytes.Equal(in.ClientHWAddr, to.ClientHWAddr) {
		return false
	}
	if !isHost4(in.ServerIdentifier()) {
		return false // releases are sent to this address, from the host too
	}
	kinds := []dhcpv4.MessageType{dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak}
	if to.MessageType() == dhcpv4.MessageTypeDiscover {
		kinds = []dhcpv4.MessageType{dhcpv4.MessageTypeOffer}
	}
	if !slices.Contains(kinds, in.MessageType()) {
		return false
	}
	return in.MessageType() == dhcpv4.MessageTypeNak || isHost4(in.YourIPAddr)
}

// isHost4 reports whether an interface can have the address.
func isHost4(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip.To4())
	return ok && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
