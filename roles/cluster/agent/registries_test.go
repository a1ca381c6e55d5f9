package agent_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
)

// useEtcd makes an etcd of the test the registry of all nodes.
func (w *world) useEtcd(url string) {
	w.t.Helper()
	w.registry = []string{"-etcd-endpoints=" + url}
	for _, n := range w.nodes {
		n.forward(strings.TrimPrefix(url, "http://"))
	}
}

// forward makes a server of the test, which listens on the loopback interface, available on the
// node's loopback interface at the same address.
func (n *node) forward(addr string) {
	t := n.w.t
	t.Helper()
	var l net.Listener
	n.ns.Do(t, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	forwardFrom(t, l, addr)
}

// forwardFrom forwards the connections of a listener to an address.
func forwardFrom(t *testing.T, l net.Listener, addr string) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					defer far.Close()
					_, _ = io.Copy(far, near)
				}()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
}

// etcdCall sends a request to etcd's JSON gateway.
func etcdCall(t *testing.T, url, path string, in map[string]any) (out struct {
	Kvs []struct{ Key, Value []byte }
},
) {
	t.Helper()
	raw, err := json.Marshal(in)
	must(t, err)
	r, err := http.Post(url+path, "application/json", bytes.NewReader(raw))
	must(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	must(t, err)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, body)
	}
	must(t, json.Unmarshal(body, &out))
	return out
}

// flannelPrefix is the prefix of flannel's keys.
const flannelPrefix = "/coreos.com/network"

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// TestEtcd: nodes share etcd in flannel's layout. etcd goes down, an agent starts without it, a
// node leaves, and records are deleted and made by hand.
func TestEtcd(t *testing.T) {
	runtime.LockOSThread() // etcd ends with the thread that started it, which must not become a namespace's
	defer runtime.UnlockOSThread()
	server := etcdtest.Start(t)
	const prefix = flannelPrefix
	put := func(key, value string) {
		t.Helper()
		etcdCall(t, server.URL, "/v3/kv/put", map[string]any{"key": b64(prefix + key), "value": b64(value)})
	}
	put("/config", vxlan)
	w := newWorld(t, 3, vxlan)
	w.useEtcd(server.URL)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	n.until("two peers", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	subnet := n.status().PodCIDRs[0]

	// A node's record is deleted and comes back with the same subnet.
	key := prefix + "/subnets/" + strings.ReplaceAll(subnet.String(), "/", "-")
	etcdCall(t, server.URL, "/v3/kv/deleterange", map[string]any{"key": b64(key)})
	w.within(func() bool {
		return len(etcdCall(t, server.URL, "/v3/kv/range", map[string]any{"key": b64(key)}).Kvs) == 1
	}, func() string { return "the own record does not come back: " + n.log.String() })
	w.reach(false, pods...)

	// A record of a flannel node, made by hand.
	put("/subnets/10.244.251.0-24", `{"PublicIP":"172.17.8.251","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:fb"}}`)
	n.until("three peers", func(a answer) bool { return a.Peers == store.OverlayPeers{Wanted: 3, Programmed: 3} })
	if out := n.exec("bridge", "fdb", "show", "dev", "flannel.1"); !strings.Contains(out, "02:00:00:00:00:fb dst 172.17.8.251") {
		t.Errorf("flannel's node is not there: %s", out)
	}
	etcdCall(t, server.URL, "/v3/kv/deleterange", map[string]any{"key": b64(prefix + "/subnets/10.244.251.0-24")})
	n.until("two peers again", func(a answer) bool { return a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })

	// etcd is down: connections continue, damage is repaired, and an agent starts.
	server.Kill()
	n.until("the loss", func(a answer) bool { return a.Ready && a.RegistryError != "" })
	n.ip("link del flannel.1")
	t.Logf("repaired without etcd within %s", w.reach(false, pods...))
	w.nodes[1].kill()
	w.nodes[1].launch()
	pods = append(pods, w.nodes[1].attach())
	w.reach(false, pods...)
	server.Up(t)
	for _, n := range w.nodes {
		n.until("etcd is back", func(a answer) bool { return a.Ready && a.RegistryError == "" && a.Peers.Programmed == 2 })
	}
	if now := n.status().PodCIDRs[0]; now != subnet {
		t.Errorf("the pod network was %s and is %s", subnet, now)
	}
	// A node withdraws its record.
	w.nodes[2].stop()
	_, err := w.nodes[2].verb("agent cleanup", map[string]string{"subnet-file": w.nodes[2].subnetFile(), "etcd-endpoints": server.URL})
	must(t, err)
	n.until("one peer", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 1, Programmed: 1} })
	w.reach(false, pods[0], pods[1])
}

// TestAddressChangeEtcd: a node whose address changes publishes the new one over a new connection. The
// old connection would have to time out first.
func TestAddressChangeEtcd(t *testing.T) {
	runtime.LockOSThread() // etcd ends with the thread that started it
	defer runtime.UnlockOSThread()
	server := etcdtest.Start(t)
	etcdCall(t, server.URL, "/v3/kv/put", map[string]any{"key": b64(flannelPrefix + "/config"), "value": b64(vxlan)})
	w := newWorld(t, 2, vxlan)
	ip(t, "addr add 172.17.8.1/24 dev fabric")
	l, err := net.Listen("tcp", "172.17.8.1:0")
	must(t, err)
	forwardFrom(t, l, strings.TrimPrefix(server.URL, "http://"))
	w.registry = []string{"-etcd-endpoints=http://" + l.Addr().String()}
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	had := n.status()
	move := func(to string) {
		n.ip("addr del " + n.addr4.String() + "/24 dev eth1")
		n.addr4 = netip.MustParseAddr(to)
		n.connect()
	}
	move("172.17.8.77")
	w.within(func() bool { return pods[0].asks(pods[1], false) }, func() string { return "no traffic: " + n.dump() })
	n.until("rest", func(a answer) bool { return a.Ready && a.RegistryError == "" })
	if log := n.log.String(); strings.Contains(log, "deadline exceeded") {
		t.Errorf("a request waited for its deadline: %s", log)
	}
	// The address changes while the agent is stopped: the record with the former address is this node's.
	logs := n.log.String()
	n.stop()
	move("172.17.8.78")
	n.start()
	if is := n.status(); is.PodCIDRs[0] != had.PodCIDRs[0] || is.IPv4.MAC != had.IPv4.MAC {
		t.Errorf("the node had %v and %s, and has %v and %s", had.PodCIDRs, had.IPv4.MAC, is.PodCIDRs, is.IPv4.MAC)
	}
	if logs += n.log.String(); strings.Contains(logs, "same VTEP MAC") {
		t.Errorf("its own record is read as another node's: %s", logs)
	}
	w.reach(false, pods...)
}
