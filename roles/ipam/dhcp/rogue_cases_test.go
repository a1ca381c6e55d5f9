package dhcp_test

import (
	"bytes"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestRogue: with any answer of a server, ADD succeeds, or fails with a reason and leaves nothing.
func TestRogue(t *testing.T) {
	wire := newWire(t)
	var say atomic.Value
	newRogue(t, wire.server, func(m *dhcpv4.DHCPv4) [][]byte { return say.Load().(answers)(m) })
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, `,"request":[{"option":"interface-mtu"}]`)
	say.Store(answers(with()))
	e.OK(call("ADD", ns, c))
	e.OK(call("DEL", ns, c))
	start := ns.Snapshot(t)
	cases := map[string]struct {
		say  answers
		want int
	}{
		"routes twice":             {with(option(33, 10, 1, 1, 1, 10, 9, 0, 1, 10, 2, 2, 2, 10, 9, 0, 1)), 0},
		"classless routes twice":   {with(option(121, bytes.Repeat([]byte{16, 10, 7, 10, 9, 0, 1}, 2)...)), 0},
		"MTU of no link":           {with(option(26, 255, 255), option(3, 10, 9, 0, 1)), 0},
		"no time":                  {with(option(51, 0, 0, 0, 0)), 0},
		"without end":              {with(option(51, 255, 255, 255, 255)), 0},
		"nearly without end":       {with(option(51, 255, 255, 255, 254)), 0},
		"search list in a circle":  {with(option(119, 1, 'a', 0xc0, 0)), 0},
		"loopback":                 {with(dhcpv4.WithYourIP(net.IPv4(127, 0, 0, 1))), 11},
		"multicast":                {with(dhcpv4.WithYourIP(net.IPv4(224, 0, 0, 1))), 11},
		"mask with holes":          {with(option(1, 255, 0, 255, 0)), 11},
		"mask of 16 bytes":         {with(option(1, bytes.Repeat([]byte{255}, 16)...)), 11},
		"server on loopback":       {with(option(54, 127, 0, 0, 1)), 11},
		"router out of reach":      {with(option(3, 8, 8, 8, 8)), 0},
		"router is the broadcast":  {with(option(3, 10, 9, 0, 255)), 0},
		"NAK storm":                {naks, 11},
		"others' answers in front": {noise, 0},
	}
	for _, succeeds := range []bool{true, false} {
		if !succeeds { // with a daemon that has a short timeout
			d.stop(t)
			daemon(t, e, "-timeout", "300ms", "-resendtimeout", "1s")
		}
		for name, r := range cases {
			if succeeds != (r.want == 0) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				say.Store(r.say)
				if succeeds {
					prev := map[string]any{"prevResult": result(t, e.OK(call("ADD", ns, c)))}
					e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, prev)))
					e.OK(call("DEL", ns, c))
				} else {
					e.Fail(call("ADD", ns, c), r.want)
				}
				if s := ns.Snapshot(t); s != start || recorded(t, e) != 0 {
					t.Errorf("%d leases on record, container:\n%swas:\n%s", recorded(t, e), s, start)
				}
			})
		}
	}
}

// answers returns a rogue's answers to a message.
type answers func(m *dhcpv4.DHCPv4) [][]byte

// naks refuses its own offer, with many packets.
func naks(m *dhcpv4.DHCPv4) (out [][]byte) {
	a := honest(m)
	if m.MessageType() == dhcpv4.MessageTypeRequest {
		a.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
	}
	for range 500 {
		out = append(out, a.ToBytes())
	}
	return out
}

// noise sends the valid answer last, after answers to other clients and incomplete ones.
func noise(m *dhcpv4.DHCPv4) (out [][]byte) {
	good := honest(m).ToBytes()
	for i := range 100 {
		other, unknown := honest(m), honest(m)
		other.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}
		unknown.TransactionID[0] ^= byte(1 + i)
		out = append(out, other.ToBytes(), unknown.ToBytes(), good[:i*len(good)/100])
	}
	return append(out, good)
}

// TestLargeReply: a reply that is larger than allowed is not parsed.
func TestLargeReply(t *testing.T) {
	wire := newWire(t)
	jumbo := func(name string) error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMTU(l, 9000)
		}
		return err
	}
	must(t, jumbo("sv0"))
	wire.server.Do(t, func() error { return jumbo("eth0") })
	newRogue(t, wire.server, func(m *dhcpv4.DHCPv4) [][]byte {
		large := honest(m, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 66)), option(43, make([]byte, 2000)...))
		return [][]byte{large.ToBytes(), honest(m).ToBytes()}
	})
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	c := rolestest.WithKeys(t, conf(e, ""), map[string]any{"mtu": 9000})
	if got := result(t, e.OK(call("ADD", netopstest.New(t), c))); got.IPs[0].Address.String() != "10.9.0.10/24" {
		t.Errorf("address %v", got.IPs[0].Address)
	}
}

// TestOtherMask: a different mask in a renewal does not change the address, which is still removed
// when the lease ends.
func TestOtherMask(t *testing.T) {
	wire := newWire(t)
	var renewed, silent atomic.Bool
	newRogue(t, wire.server, func(m *dhcpv4.DHCPv4) [][]byte {
		mask := option(1, 255, 255, 255, 0)
		if renewed.Load() {
			mask = option(1, 255, 255, 0, 0)
		}
		if silent.Load() {
			return nil
		}
		return with(option(51, 0, 0, 0, 8), option(58, 0, 0, 0, 1), option(59, 0, 0, 0, 7), mask)(m)
	})
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "1s", "-resendmax", "1s")
	ns := netopstest.New(t)
	c := conf(e, "")
	r := result(t, e.OK(call("ADD", ns, c)))
	renewed.Store(true)
	d.await(t, "lease extended", strings.Count(d.said(), "lease extended")+2)
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	silent.Store(true)
	d.await(t, "removing the address", 1)
	awaitGone(t, ns, "10.9.0.10")
	e.OK(call("DEL", ns, c))
}
