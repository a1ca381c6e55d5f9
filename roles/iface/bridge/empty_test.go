package bridge_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// passing is a network whose bridge goes with its last attachment.
const passing = `{"cniVersion":"1.1.0","name":"passing","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"removeEmptyBridge":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`

// passenger is a node with a container on a network with removeEmptyBridge.
type passenger struct {
	*rolestest.Env
	t        *testing.T
	ns       *netopstest.NS
	conf     string
	pristine string
}

func newPassenger(t *testing.T, conf string) *passenger {
	t.Helper()
	p := &passenger{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t), conf: conf}
	p.pristine = p.state()
	t.Cleanup(func() {
		p.Run(rolestest.Call{Type: "bridge", Verb: "GC", Conf: rolestest.WithKeys(t, conf, map[string]any{"cni.dev/valid-attachments": []any{}})})
	})
	return p
}

func (p *passenger) state() string { return p.State([]string{"sysctl net/"}, p.ns) }

func (p *passenger) call(verb, ifName string) rolestest.Call {
	return rolestest.Call{Type: "bridge", Verb: verb, ID: "c1", Netns: p.ns.Path(), IfName: ifName, Conf: p.conf}
}

// gone fails the test unless everything is as it was before the first ADD.
func (p *passenger) gone(when string) {
	p.t.Helper()
	if s := p.state(); s != p.pristine {
		p.t.Fatalf("%s:\n%s\nwas:\n%s", when, s, p.pristine)
	}
}

// TestRemoveEmptyBridge is containernetworking/plugins#282: the last DEL takes
// the bridge with it, and only the last.
func TestRemoveEmptyBridge(t *testing.T) {
	p := newPassenger(t, passing)
	p.OK(p.call("ADD", "eth0"))
	p.OK(p.call("ADD", "eth1"))
	p.OK(p.call("DEL", "eth0"))
	link(t, "br0")
	p.OK(p.call("DEL", "eth1"))
	p.gone("after the last DEL")
	p.OK(p.call("DEL", "eth1"))
	p.gone("after one more DEL")
}

// TestRemoveEmptyBridgeStateLost: what no record tells of goes too, by its label.
func TestRemoveEmptyBridgeStateLost(t *testing.T) {
	for name, conf := range map[string]string{
		"with masquerading": passing,
		"bare":              `{"cniVersion":"1.1.0","name":"bare","type":"bridge","bridge":"br0","removeEmptyBridge":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPassenger(t, conf)
			p.OK(p.call("ADD", "eth0"))
			must(t, deleteState(p.Env))
			p.OK(p.call("DEL", "eth0"))
			p.gone("after DEL without state")
			p.OK(p.call("ADD", "eth0"))
			must(t, netlink.LinkDel(link(t, portOf(t, "br0"))))
			must(t, deleteState(p.Env))
			p.OK(p.call("DEL", "eth0"))
			p.gone("after DEL without state and port")
		})
	}
}

// portOf is the name of a bridge's only port.
func portOf(t *testing.T, bridge string) string {
	t.Helper()
	links, err := netlink.LinkList()
	must(t, err)
	index := link(t, bridge).Attrs().Index
	for _, l := range links {
		if l.Attrs().MasterIndex == index {
			return l.Attrs().Name
		}
	}
	t.Fatalf("%s has no port", bridge)
	return ""
}

// TestRemoveEmptyBridgeOfAnother: a bridge that was there before us stays, with
// what was on it, and so does one of ours while a stranger's port is on it.
func TestRemoveEmptyBridgeOfAnother(t *testing.T) {
	t.Run("bridge", func(t *testing.T) {
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
		must(t, netlink.LinkSetUp(link(t, "br0")))
		t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "br0"))) })
		p := newPassenger(t, `{"cniVersion":"1.1.0","name":"guest","type":"bridge","bridge":"br0","removeEmptyBridge":true}`)
		p.OK(p.call("ADD", "eth0"))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
		p.OK(p.call("ADD", "eth0"))
		must(t, deleteState(p.Env))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
	})
	t.Run("port", func(t *testing.T) {
		p := newPassenger(t, passing)
		p.OK(p.call("ADD", "eth0"))
		attrs := netlink.LinkAttrs{Name: "stranger", MasterIndex: link(t, "br0").Attrs().Index}
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable"}))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
		must(t, netlink.LinkDel(link(t, "stranger")))
		p.OK(p.call("ADD", "eth0"))
		p.OK(p.call("DEL", "eth0"))
		p.gone("after the stranger has gone")
	})
}

// TestRemoveEmptyBridgeOfTwoNetworks: what another network stands on stays
// until that one's last attachment.
func TestRemoveEmptyBridgeOfTwoNetworks(t *testing.T) {
	p := newPassenger(t, passing)
	other := p.call("ADD", "eth1")
	other.Conf = strings.ReplaceAll(passing, `"passing"`, `"other"`)
	p.OK(p.call("ADD", "eth0"))
	p.OK(other)
	p.OK(p.call("DEL", "eth0"))
	if s := netopstest.Snapshot(t); !strings.Contains(s, "10.1.0.1/24") || !strings.Contains(s, "set masq4 element") {
		t.Errorf("the other network has lost its gateway or its masquerading:\n%s", s)
	}
	other.Verb = "DEL"
	p.OK(other)
	p.gone("after both")
}

// TestFailedAddLeavesNoBridge: an ADD that fails after it made the bridge.
func TestFailedAddLeavesNoBridge(t *testing.T) {
	p := newPassenger(t, passing)
	for n := 1; ; n++ {
		call := p.call("ADD", "eth0")
		call.Probe = "net:fail:" + strconv.Itoa(n)
		if a := p.Run(call); a.Code == 0 {
			if n < 8 {
				t.Errorf("only %d writes", n)
			}
			break
		}
		p.gone("after an ADD that failed at its write " + strconv.Itoa(n))
	}
	p.OK(p.call("DEL", "eth0"))
	p.gone("after DEL")
}

// TestRemoveEmptyBridgeInParallel: 300 containers come and go, many at once or
// so few that the bridge goes and comes back all the time. No call fails, and
// without GC the bridge is gone at the end.
func TestRemoveEmptyBridgeInParallel(t *testing.T) {
	for _, parallel := range []int{3, 32} {
		t.Run(strconv.Itoa(parallel), func(t *testing.T) {
			p := newPassenger(t, passing)
			var workers sync.WaitGroup
			for w := range parallel {
				ns := netopstest.New(t)
				workers.Go(func() {
					for n := w; n < 300; n += parallel {
						p.turn("c"+strconv.Itoa(n), ns)
					}
				})
			}
			workers.Wait()
			p.gone("after all have gone")
		})
	}
}

// turn is ADD and DEL of one container; it may be called from any goroutine.
func (p *passenger) turn(id string, ns *netopstest.NS) {
	for _, verb := range []string{"ADD", "DEL"} {
		c := p.call(verb, "eth0")
		c.ID, c.Netns = id, ns.Path()
		if a, err := rolestest.RunFor(p.Cmd(c), 0); err != nil || a.Code != 0 {
			p.t.Errorf("%s of %s: %v: exit %d: %s%s", verb, id, err, a.Code, a.Stdout, a.Stderr)
		}
	}
}

// TestStormEmptyBridge is the same with plugins killed at random.
func TestStormEmptyBridge(t *testing.T) {
	rolestest.Storm{Table: all.Table(), Type: "bridge", Containers: 60, Parallel: 16, Confs: []string{passing}}.Run(t)
}

// TestRemoveEmptyVLANGateway is containernetworking/plugins#1175: the gateway
// of a VLAN goes with the last attachment of the network, the bridge with that
// of the last network.
func TestRemoveEmptyVLANGateway(t *testing.T) {
	netopstest.NeedVLANFiltering(t)
	conf := func(name, id string) string {
		return `{"cniVersion":"1.1.0","name":"` + name + `","type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"vlan":` + id + `,"removeEmptyBridge":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.` + id + `.0/24"}]]}}`
	}
	p := newPassenger(t, conf("one", "100"))
	other := p.call("ADD", "eth1")
	other.Conf = conf("two", "200")
	p.OK(p.call("ADD", "eth0"))
	p.OK(other)
	p.OK(p.call("DEL", "eth0"))
	if s := netopstest.Snapshot(t); strings.Contains(s, "br0.100") || !strings.Contains(s, "br0.200") {
		t.Errorf("after the last DEL of VLAN 100 there are:\n%s", s)
	}
	other.Verb = "DEL"
	p.OK(other)
	p.gone("after both")
	p.OK(p.call("ADD", "eth0"))
	must(t, deleteState(p.Env))
	p.OK(p.call("DEL", "eth0"))
	p.gone("after DEL without state")
}
