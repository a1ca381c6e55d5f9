package azurevnet_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// fabric is the cloud's network around the node. It routes packets, accepts
// only frames from the MAC of the node's interface, and answers ARP only for
// its own addresses.
type fabric struct {
	*netopstest.NS
	// mac is the MAC of the node's interface.
	mac net.HardwareAddr
}

const (
	gateway = "10.240.0.1"
	// beyond is another machine of the VNet, world one outside of it.
	beyond, world = "10.240.5.5", "198.51.100.9"
)

// newFabric creates a fabric that the node's eth0 is connected to. It replaces
// the eth0 of the tests without a fabric.
func newFabric(t *testing.T) *fabric {
	t.Helper()
	for _, name := range []string{"azure0", "eth0"} {
		if l, err := netlink.LinkByName(name); err == nil {
			must(t, netlink.LinkDel(l))
		}
	}
	f := &fabric{NS: netopstest.New(t)}
	ns, err := os.Open(f.Path())
	must(t, err)
	defer ns.Close()
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "f0", PeerNamespace: netlink.NsFd(int(ns.Fd())),
		PeerHardwareAddr: net.HardwareAddr{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc},
	}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "eth0"))) })
	f.mac = link(t, "eth0").Attrs().HardwareAddr
	f.Do(t, f.prepare)
	must(t, nodeEth0())
	return f
}

// prepare runs in the fabric's namespace.
func (f *fabric) prepare() error {
	errs := []error{netopstest.LinkUp("f0", gateway+"/16", beyond+"/32", world+"/32", "fd00:240::1/64", "fd00:240::5:5/128")}
	for key, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/send_redirects": "0", "ipv4/conf/f0/send_redirects": "0", "ipv6/conf/all/forwarding": "1",
	} {
		errs = append(errs, os.WriteFile("/proc/sys/net/"+key, []byte(value), 0))
	}
	l, err := netlink.LinkByName("f0")
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for i := range byte(30) { // the cloud knows which addresses the node's interface has
		for _, ip := range []net.IP{{10, 240, 0, 36 + i}, net.ParseIP(fmt.Sprintf("fd00:240::%x", 0x36+int(i)))} {
			errs = append(errs, netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: ip, HardwareAddr: f.mac, State: netlink.NUD_PERMANENT}))
		}
	}
	return errors.Join(append(errs, f.filter())...)
}

// filter drops frames with a source MAC other than the node's.
func (f *fabric) filter() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: "fabric"})
	chain := c.AddChain(&nftables.Chain{
		Name: "in", Table: table, Type: nftables.ChainTypeFilter, Device: "f0",
		Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: f.mac},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	// The sender's MAC in an ARP packet must match too.
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_ARP)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 6},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: f.mac},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return c.Flush()
}

// dropped counts the frames that the fabric dropped.
func (f *fabric) dropped(t *testing.T) (n uint64) {
	t.Helper()
	f.Do(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyNetdev, Name: "fabric"}
		rules, err := c.GetRules(table, &nftables.Chain{Name: "in", Table: table})
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					n += counter.Packets
				}
			}
		}
		return err
	})
	return n
}

// forwarded counts the IPv4 packets that came from the node and were sent back
// to it.
func (f *fabric) forwarded(t *testing.T) (n int) {
	t.Helper()
	f.Do(t, func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(snmp)) {
			fields := strings.Fields(line)
			if fields[0] != "Ip:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			for i, name := range names {
				if name == "ForwDatagrams" {
					_, err = fmt.Sscan(fields[i], &n)
				}
			}
		}
		return err
	})
	return n
}
