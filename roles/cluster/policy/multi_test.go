package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// blueClients allows the pods app=web on the network default/blue UDP to port 80 from the pods role=client only.
const blueClients = `apiVersion: k8s.cni.cncf.io/v1beta2
kind: MultiNetworkPolicy
metadata:
  name: web
  annotations: {k8s.v1.cni.cncf.io/policy-for: blue}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
    ports: [{port: 80, protocol: UDP}]
`

// networks writes the definitions of the networks blue, on the bridge br2, and red, of macvlans.
func (n *node) networks() {
	n.t.Helper()
	netopstest.Master(n.t, "uplink0")
	dir := filepath.Join(n.Dir(), "networks", "default")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	for name, plugin := range map[string]string{"blue": `"type":"bridge","bridge":"br2"`, "red": `"type":"macvlan","master":"uplink0"`} {
		conf := `{"cniVersion":"1.1.0","name":"` + name + `",` + plugin + `,"capabilities":{"ips":true},"ipam":{"type":"static"}}`
		if err := os.WriteFile(filepath.Join(dir, name+".conf"), []byte(conf), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}

// multi returns a pod with the host-th addresses of net1 and of another network, and its view from the other network.
func (n *node) multi(host int, labels, network, a4, a6 string) (p, secondary *pod) {
	p = n.pod(1, host, labels)
	_, plugin, _ := strings.Cut(p.call.Conf, `"name":"net1",`)
	p.call.Type = "multi"
	p.call.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"all","type":"multi","networksDir":%q,"delegates":[{"cniVersion":"1.1.0","name":"net1",%s],
		"args":{"cni":{"k8s.v1.cni.cncf.io/networks":[{"name":%q,"namespace":"default","ips":["%s/24","%s/64"]}]}}}`,
		filepath.Join(n.Dir(), "networks"), plugin, network, a4, a6)
	n.t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", attachment.HostLink(store.Key{Network: network, ContainerID: p.call.ID, IfName: "net1"})).Run()
	})
	return p, &pod{p.ns, p.call, [2]netip.Addr{netip.MustParseAddr(a4), netip.MustParseAddr(a6)}}
}

// blue returns a pod with the host-th addresses of net1 and of blue, attached, and its view from blue.
func (n *node) blue(host int, labels string) (p, secondary *pod) {
	n.t.Helper()
	p, secondary = n.multi(host, labels, "blue", fmt.Sprintf("10.2.0.%d", host), fmt.Sprintf("fd00:2::%d", host))
	return n.add(p), secondary
}

// sinkOn counts the datagrams that arrive at a port of the pod's addresses only.
func (n *node) sinkOn(p *pod, port uint16) *sink {
	n.t.Helper()
	var s sink
	p.ns.Do(n.t, func() error {
		for i, a := range p.addresses {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
			if err != nil {
				return err
			}
			n.t.Cleanup(func() { _ = c.Close() })
			go func() {
				b := make([]byte, 10)
				for {
					if _, _, err := c.ReadFromUDPAddrPort(b); err != nil {
						return
					}
					s[i].Add(1)
				}
			}()
		}
		return nil
	})
	return &s
}

// TestMultiNetwork: a MultiNetworkPolicy filters the pods' addresses of its network, by their peers' addresses of that network, and
// no other network. It ends with its file.
func TestMultiNetwork(t *testing.T) {
	n := newNode(t)
	n.networks()
	n.put("web.yaml", blueClients)
	n.start()
	_, client := n.blue(2, "role=client")
	near, other := n.blue(3, "")
	one, web := n.blue(4, "app=web")
	_, web2 := n.blue(5, "app=web")
	primary, allowed, port, peer := n.sinkOn(one, 81), n.sinkOn(web, 80), n.sinkOn(web, 81), n.sinkOn(web2, 80)
	n.flood(client, web)
	n.flood(other, web2)
	n.flood(near, one)
	n.more(allowed, "a client on blue")
	n.more(primary, "the cluster's network")
	n.none(port, "another port")
	n.none(peer, "another peer")
	if err := os.Remove(filepath.Join(n.dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	n.more(port, "without the policy")
	n.more(peer, "without the policy")
}

// TestMultiAttachedBefore: the pods of a network that were attached before policies were enforced are filtered when the agent begins, and
// while it does not run, the saved policies are in force for new pods.
func TestMultiAttachedBefore(t *testing.T) {
	n := newNode(t)
	n.networks()
	n.put("web.yaml", blueClients)
	_, client := n.blue(2, "role=client")
	_, web := n.blue(4, "app=web")
	allowed, port := n.sinkOn(web, 80), n.sinkOn(web, 81)
	n.flood(client, web)
	n.more(port, "without the agent")
	stop := n.start()
	awaitRules(t, "10.2.0.4")
	n.stops(port, allowed, "after the agent's start")
	stop()
	_, web2 := n.blue(5, "app=web")
	saved := n.sinkOn(web2, 81)
	n.flood(client, web2)
	n.more(allowed, "while the agent does not run")
	n.none(saved, "a pod that was added while the agent does not run")
}

// TestMultiRefused: a policy for a network of macvlans, and one for pods whose addresses are also those of another network, cannot be
// enforced: ADD says so, and leaves the other pods as they are.
func TestMultiRefused(t *testing.T) {
	n := newNode(t)
	n.networks()
	n.put("web.yaml", strings.Replace(blueClients, "policy-for: blue", `policy-for: "blue, default/red"`, 1))
	n.start()
	p, _ := n.multi(6, "app=web", "red", "10.3.0.6", "fd00:3::6")
	if a := n.Fail(p.call, 11); !strings.Contains(a.Stderr+a.Stdout, "do not pass the node's packet filter") {
		t.Error(a)
	}
	free, _ := n.multi(7, "", "red", "10.3.0.7", "fd00:3::7")
	n.add(free)
	near, _ := n.blue(2, "")
	first, _ := n.blue(3, "app=web")
	arriving := n.sinkOn(first, 81)
	n.flood(near, first)
	n.more(arriving, "the first pod")
	same, _ := n.multi(8, "app=web", "blue", "10.1.0.3", "fd00:2::8")
	if a := n.Fail(same.call, 11); !strings.Contains(a.Stderr+a.Stdout, "10.1.0.3 is that of default/p1-3 and of default/p1-8 on default/blue") {
		t.Error(a)
	}
	n.more(arriving, "the first pod")
}
