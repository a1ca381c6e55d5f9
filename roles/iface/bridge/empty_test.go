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

// removableConf is a network whose bridge is removed with its last attachment.
const removableConf = `{"cniVersion":"1.1.0","name":"passing","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"removeEmptyBridge":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`

// emptyBridge is a node with a container on a network with removeEmptyBridge.
type emptyBridge struct {
	*rolestest.Env
	t        *testing.T
	ns       *netopstest.NS
	conf     string
	pristine string
}

func newEmptyBridge(t *testing.T, conf string) *emptyBridge {
	t.Helper()
	p := &emptyBridge{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t), conf: conf}
	p.pristine = p.state()
	t.Cleanup(func() {
		p.Run(rolestest.Call{Type: "bridge", Verb: "GC", Conf: rolestest.WithKeys(t, conf, map[string]any{"cni.dev/valid-attachments": []any{}})})
	})
	return p
}

func (p *emptyBridge) state() string { return p.State([]string{"sysctl net/"}, p.ns) }

func (p *emptyBridge) call(verb, ifName string) rolestest.Call {
	return rolestest.Call{Type: "bridge", Verb: verb, ID: "c1", Netns: p.ns.Path(), IfName: ifName, Conf: p.conf}
}

// gone fails the test unless the node is as it was before the first ADD.
func (p *emptyBridge) gone(when string) {
	p.t.Helper()
	if s := p.state(); s != p.pristine {
		p.t.Fatalf("%s:\n%s\nwas:\n%s", when, s, p.pristine)
	}
}

// TestRemoveEmptyBridge is containernetworking/plugins#282: only the last DEL
// removes the bridge.
func TestRemoveEmptyBridge(t *testing.T) {
	p := newEmptyBridge(t, removableConf)
	p.OK(p.call("ADD", "eth0"))
	p.OK(p.call("ADD", "eth1"))
	p.OK(p.call("DEL", "eth0"))
	link(t, "br0")
	p.OK(p.call("DEL", "eth1"))
	p.gone("after the last DEL")
	p.OK(p.call("DEL", "eth1"))
	p.gone("after one more DEL")
}

// TestRemoveEmptyBridgeStateLost: an object without a record is removed too,
// identified by its label.
func TestRemoveEmptyBridgeStateLost(t *testing.T) {
	for name, conf := range map[string]string{
		"with masquerading": removableConf,
		"bare":              `{"cniVersion":"1.1.0","name":"bare","type":"bridge","bridge":"br0","removeEmptyBridge":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newEmptyBridge(t, conf)
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

// portOf is the name of the only port of a bridge.
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

// TestRemoveEmptyBridgeKeepsExisting: a bridge that existed before the first ADD
// stays unchanged. A bridge of ours stays while it has another program's port.
func TestRemoveEmptyBridgeKeepsExisting(t *testing.T) {
	t.Run("bridge", func(t *testing.T) {
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
		must(t, netlink.LinkSetUp(link(t, "br0")))
		t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "br0"))) })
		p := newEmptyBridge(t, `{"cniVersion":"1.1.0","name":"guest","type":"bridge","bridge":"br0","removeEmptyBridge":true}`)
		p.OK(p.call("ADD", "eth0"))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
		p.OK(p.call("ADD", "eth0"))
		must(t, deleteState(p.Env))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
	})
	t.Run("port", func(t *testing.T) {
		p := newEmptyBridge(t, removableConf)
		p.OK(p.call("ADD", "eth0"))
		attrs := netlink.LinkAttrs{Name: "other", MasterIndex: link(t, "br0").Attrs().Index}
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable"}))
		p.OK(p.call("DEL", "eth0"))
		link(t, "br0")
		must(t, netlink.LinkDel(link(t, "other")))
		p.OK(p.call("ADD", "eth0"))
		p.OK(p.call("DEL", "eth0"))
		p.gone("after the other port was deleted")
	})
}

// TestRemoveEmptyBridgeOfTwoNetworks: objects that another network uses stay
// until that network's last attachment is deleted.
func TestRemoveEmptyBridgeOfTwoNetworks(t *testing.T) {
	p := newEmptyBridge(t, removableConf)
	other := p.call("ADD", "eth1")
	other.Conf = strings.ReplaceAll(removableConf, `"passing"`, `"other"`)
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

// TestFailedAddLeavesNoBridge: an ADD that fails after it created the bridge
// removes it.
func TestFailedAddLeavesNoBridge(t *testing.T) {
	p := newEmptyBridge(t, removableConf)
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

// TestRemoveEmptyBridgeInParallel: 300 containers are attached and detached,
// either many at once or so few that the bridge is removed and created
// repeatedly. No call fails, and the bridge is removed at the end without GC.
func TestRemoveEmptyBridgeInParallel(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, parallel := range []int{3, 32} {
		t.Run(strconv.Itoa(parallel), func(t *testing.T) {
			p := newEmptyBridge(t, removableConf)
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

// turn runs ADD and DEL of one container. It may be called from any goroutine.
func (p *emptyBridge) turn(id string, ns *netopstest.NS) {
	for _, verb := range []string{"ADD", "DEL"} {
		c := p.call(verb, "eth0")
		c.ID, c.Netns = id, ns.Path()
		if a, err := rolestest.RunFor(p.Cmd(c), 0); err != nil || a.Code != 0 {
			p.t.Errorf("%s of %s: %v: exit %d: %s%s", verb, id, err, a.Code, a.Stdout, a.Stderr)
		}
	}
}

// TestStormEmptyBridge does the same with plugins that are killed at random.
func TestStormEmptyBridge(t *testing.T) {
	rolestest.Storm{Table: all.Table(), Type: "bridge", Containers: 60, Parallel: 16, Confs: []string{removableConf}}.Run(t)
}

// TestRemoveEmptyVLANGateway is containernetworking/plugins#1175: the gateway
// interface of a VLAN is removed with the network's last attachment, the bridge
// with the last attachment of the last network.
func TestRemoveEmptyVLANGateway(t *testing.T) {
	netopstest.NeedVLANFiltering(t)
	conf := func(name, id string) string {
		return `{"cniVersion":"1.1.0","name":"` + name + `","type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"vlan":` + id + `,"removeEmptyBridge":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.` + id + `.0/24"}]]}}`
	}
	p := newEmptyBridge(t, conf("one", "100"))
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
