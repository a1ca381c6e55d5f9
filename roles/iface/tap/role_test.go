package tap_test

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	layer3 = `{"name":"layer3","type":"tap","multiQueue":true,"mtu":1400,"mac":"02:00:00:00:00:0a","owner":1000,"group":1001,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	layer2 = `{"name":"layer2","type":"tap"}`
	port   = `{"name":"port","type":"tap","bridge":"br0","owner":0}`
)

func needs(t testing.TB) { netopstest.NeedKind(t, "tun") }

// TestRole runs the suite: the reference's scenarios "ADD/CHECK/DEL" and "as
// bridge port".
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "tap",
		Confs: []rolestest.Conf{
			{Name: "layer3", Refused: map[string]any{"mtu": -1}, JSON: layer3, Needs: needs, Tamper: append(append(tampers(), addressGone), rolestest.MTUs(false)...)},
			{Name: "layer2", JSON: layer2, Needs: needs, NoSweeps: true, NoAddress: true, Tamper: tampers()},
			{Name: "port", JSON: port, Needs: needs, NoAddress: true, Prepare: prepare, Tamper: append(tampers(), offBridge)},
		},
	}.Run(t)
}

// prepare creates the bridge in a container's namespace.
func prepare(t *testing.T, ns *netopstest.NS) {
	t.Helper()
	ns.Do(t, func() error {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, 0xb0} // otherwise it would follow its port's MAC
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", HardwareAddr: mac}})
	})
}

func tampers() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("link down", netlink.LinkSetDown),
		rolestest.Inside("link gone", netlink.LinkDel),
		rolestest.Inside("MAC changed", netopstest.OtherMAC),
	}
}

var (
	addressGone = rolestest.Inside("address gone", netopstest.DropAddress)
	offBridge   = rolestest.Inside("off the bridge", netlink.LinkSetNoMaster)
)

// attach creates a container with a tap device and returns ADD's result.
func attach(t *testing.T, e *rolestest.Env, ns *netopstest.NS, conf string) *roles.Result {
	t.Helper()
	call := rolestest.Call{
		Type: "tap", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}
	r := new(roles.Result)
	if err := json.Unmarshal([]byte(e.OK(call).Stdout), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		call.Verb = "DEL"
		e.OK(call)
	})
	return r
}

// TestKeys: the device has the attributes that the keys set. Upstream ignores
// mac if owner and group are set, and runs the ip command if they are not.
func TestKeys(t *testing.T) {
	needs(t)
	const none = 0 // the library's value for "no owner"
	for _, c := range []struct {
		name, conf   string
		owner, group uint32
		queues       bool
		mtu          int
		mac          string
	}{
		{"all", layer3, 1000, 1001, true, 1400, "02:00:00:00:00:0a"},
		{"owner alone", `{"name":"n","type":"tap","owner":1000}`, 1000, none, false, 1500, ""},
		{"neither", layer2, none, none, false, 1500, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netopstest.New(t)
			r := attach(t, rolestest.NewEnv(t, all.Table()), ns, c.conf)
			ns.Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				tap, ok := l.(*netlink.Tuntap)
				if !ok || tap.Mode != netlink.TUNTAP_MODE_TAP || tap.NonPersist {
					t.Errorf("device is %+v, want a persistent tap", l)
					return nil
				}
				if tap.Owner != c.owner || tap.Group != c.group || tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 != c.queues {
					t.Errorf("owner %d, group %d, flags %v", tap.Owner, tap.Group, tap.Flags)
				}
				a := l.Attrs()
				if a.MTU != c.mtu || c.mac != "" && a.HardwareAddr.String() != c.mac || r.Interfaces[0].Mac != a.HardwareAddr.String() {
					t.Errorf("mtu %d, MAC %s, in the result %s", a.MTU, a.HardwareAddr, r.Interfaces[0].Mac)
				}
				return nil
			})
		})
	}
}

// TestTraffic: a program in the container that opens the device, such as a
// virtual machine, receives the frames that the container sends.
func TestTraffic(t *testing.T) {
	needs(t)
	ns := netopstest.New(t)
	r := attach(t, rolestest.NewEnv(t, all.Table()), ns, layer3)
	mac, err := net.ParseMAC(r.Interfaces[0].Mac)
	if err != nil {
		t.Fatal(err)
	}
	ns.Do(t, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request, err := unix.NewIfreq("eth0")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		conn, err := net.Dial("udp", "10.1.0.9:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			return err
		}
		// The test waits for an ARP request for 10.1.0.9 (RFC 826). The
		// announcement of the container's own addresses may come before it.
		for b := make([]byte, 2000); ; {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(poll, 20_000); err != nil || n == 0 {
				t.Errorf("no ARP request: %v", err)
				return nil
			}
			n, err := unix.Read(fd, b)
			if err != nil {
				return err
			}
			if n >= 42 && bytes.Equal(b[12:14], []byte{8, 6}) && bytes.Equal(b[38:42], []byte{10, 1, 0, 9}) {
				if !bytes.Equal(b[6:12], mac) {
					t.Errorf("ARP request from %x, want %s", b[6:12], mac)
				}
				return nil
			}
		}
	})
}

// TestBridge: an unusable bridge is reported, and nothing is left.
func TestBridge(t *testing.T) {
	needs(t)
	for _, c := range []struct{ name, kind, want string }{
		{"absent", "", `bridge: \"br0\" does not exist in the container's namespace`},
		{"no bridge", "veth", `bridge: \"br0\" in the container's namespace is not a bridge`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := rolestest.NewEnv(t, all.Table())
			ns := netopstest.New(t)
			if c.kind != "" {
				ns.Do(t, func() error {
					return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, PeerName: "other"})
				})
			}
			before := e.State(nil, ns)
			a := e.Fail(rolestest.Call{
				Type: "tap", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0",
				Conf: rolestest.WithKeys(t, port, map[string]any{"cniVersion": "1.1.0"}),
			}, 7)
			if !strings.Contains(a.Stdout, c.want) {
				t.Errorf("the error is %s, want %s", a.Stdout, c.want)
			}
			if have := e.State(nil, ns); have != before {
				t.Errorf("after a failed ADD:\n%s\nbefore:\n%s", have, before)
			}
		})
	}
}
