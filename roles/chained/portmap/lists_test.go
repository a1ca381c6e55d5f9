package portmap_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// list is a network list that a tool wrote. The test calls it as that tool
// does.
type list struct {
	w       *town
	version string
	name    string
	plugins []map[string]any
	// args are CNI_ARGS, or "" for podman's.
	args string
}

// readList reads one of testdata/lists. `podman network create` wrote them:
// podman-options with --opt mtu, isolate and vlan, podman-isolate with the
// first two, podman-dual with --ipv6, podman-internal with --internal.
func readList(t *testing.T, w *town, name string) *list {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "lists", name+".conflist"))
	must(t, err)
	var conf struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	must(t, json.Unmarshal(raw, &conf))
	l := &list{w: w, version: conf.CNIVersion, name: conf.Name, plugins: conf.Plugins}
	t.Cleanup(l.prune)
	return l
}

// call calls the i-th plugin for a container, whose ID ends in "web" if it has ports.
func (l *list) call(p *pod, verb, netns string, i int) rolestest.Call {
	l.w.t.Helper()
	conf := maps.Clone(l.plugins[i])
	conf["cniVersion"], conf["name"] = l.version, l.name
	if conf["type"] == "portmap" && strings.HasSuffix(p.id, "web") {
		conf["runtimeConfig"] = map[string]any{"portMappings": []map[string]any{
			{"hostPort": 18080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
			{"hostPort": 18080, "containerPort": 80, "protocol": "udp", "hostIP": ""},
			{"hostPort": 18081, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
		}}
	}
	if p.result != "" {
		conf["prevResult"] = json.RawMessage(p.result)
	}
	raw, err := json.Marshal(conf)
	must(l.w.t, err)
	typ, _ := conf["type"].(string)
	return rolestest.Call{
		Type: typ, Verb: verb, ID: p.id, Netns: netns, IfName: "eth0", Conf: string(raw),
		Args: cmp.Or(l.args, "IgnoreUnknown=1;K8S_POD_NAME="+p.id),
	}
}

// up attaches a container.
func (l *list) up(p *pod) *pod {
	l.w.t.Helper()
	p.result, p.addrs = "", nil
	for i := range l.plugins {
		answer := l.w.OK(l.call(p, "ADD", p.Path(), i))
		if strings.Contains(answer.Stderr, "listens") {
			l.w.t.Errorf("ADD found a process of the node: %s", answer.Stderr)
		}
		p.result = answer.Stdout
	}
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	must(l.w.t, json.Unmarshal([]byte(p.result), &r))
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.Addr())
	}
	return p
}

// down detaches a container, with the path of its namespace or "".
func (l *list) down(p *pod, netns string) {
	l.w.t.Helper()
	for i := range slices.Backward(l.plugins) {
		l.w.OK(l.call(p, "DEL", netns, i))
	}
}

// prune runs GC for what the network has left.
func (l *list) prune() {
	l.w.t.Helper()
	for i, plugin := range l.plugins {
		c := l.call(&pod{}, "GC", "", i)
		c.IfName, c.Args = "", ""
		c.Conf = rolestest.WithKeys(l.w.t, c.Conf, map[string]any{"cniVersion": "1.1.0", "type": plugin["type"], "cni.dev/valid-attachments": []any{}})
		l.w.OK(c)
	}
}

// container is a container that answers once it is attached.
func (w *town) container(id string) *pod {
	w.t.Helper()
	p := &pod{NS: netopstest.New(w.t), w: w, id: id}
	p.serve()
	return p
}

// TestPodmanLists attaches containers to networks as podman writes them,
// connects to published ports from outside, from the node and from another
// container, and detaches them. A second DEL and a DEL without a namespace
// leave nothing either.
func TestPodmanLists(t *testing.T) {
	for _, v := range []struct {
		name           string
		vlan, internal bool
	}{{"options", true, false}, {"isolate", false, false}, {"dual", false, false}, {"internal", false, true}} {
		t.Run(v.name, func(t *testing.T) {
			if v.vlan {
				netopstest.NeedVLANFiltering(t)
			}
			w := newTown(t)
			l := readList(t, w, "podman-"+v.name)
			one, p := l.up(w.container("one")), l.up(w.container("web"))
			l.down(p, p.Path())
			before := netopstest.Snapshot(t)
			l.up(p)
			for i := range l.plugins {
				w.OK(l.call(p, "CHECK", p.Path(), i))
			}
			w.wants("web "+one.addrs[0].String(), one.NS, "tcp", "", p.addrs[0].String(), 80)
			if !v.internal { // without a gateway the container cannot reply to others
				for _, network := range []string{"tcp", "udp"} {
					w.wants("web 192.0.2.2", w.outside, network, "192.0.2.2", "192.0.2.1", 18080)
					w.wants("web 10.115.0.1", one.NS, network, "", "192.0.2.1", 18080)
				}
				w.wants("web 10.115.0.1", nil, "tcp", "", "127.0.0.1", 18081)
				w.wants("", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 18081)
			}
			if len(p.addrs) > 1 {
				w.wants("web 2001:db8::2", w.outside, "tcp", "2001:db8::2", "2001:db8::1", 18080)
			}
			l.down(p, p.Path())
			w.wants("", nil, "tcp", "", "127.0.0.1", 18081)
			l.up(p)
			l.down(p, "")
			l.down(p, p.Path())
			if now := netopstest.Snapshot(t); now != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, now)
			}
			l.down(one, one.Path())
			if text := w.State(nil); strings.Contains(text, `"web"`) {
				t.Errorf("the store has\n%s", text)
			}
		})
	}
}

// TestNerdctlList makes the calls that nerdctl makes: DEL with an empty netns
// before ADD, to remove stale state, and after the container has stopped. A
// restart of containerd does this while the container is still attached. Before the
// calls it binds the ports in a process of its own, and kills this after them.
func TestNerdctlList(t *testing.T) {
	w := newTown(t)
	w.Extra = append(w.Extra, "CNIBOX_LOG=warn")
	l := readList(t, w, "nerdctl")
	l.args = "IgnoreUnknown=1;NERDCTL_CNI_DHCP_HOSTNAME=web"
	one, p := l.up(w.container("default-one")), w.container("default-web")
	inside := p.Snapshot(t)
	l.down(l.up(p), "")
	before := netopstest.Snapshot(t)
	reached := func() {
		t.Helper()
		w.wants("default-web 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 18080)
		w.wants("default-web 192.0.2.2", w.outside, "udp", "192.0.2.2", "192.0.2.1", 18080)
		w.wants("default-web 10.115.0.1", nil, "tcp", "", "127.0.0.1", 18081)
	}
	reserve(t, "/run/nerdctl/default/web/port-reserver.pid", "tcp=0.0.0.0:18080", "udp=0.0.0.0:18080", "tcp=127.0.0.1:18081")
	for range 2 {
		l.down(p, "")
		l.up(p)
		reached()
		l.down(p, "")
		l.up(p)
		reached()
		l.down(p, "")
		p.result = ""
		l.down(p, "")
		if now := netopstest.Snapshot(t); now != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, now)
		}
		p.Reset(t)
		if now := p.Snapshot(t); now != inside {
			t.Errorf("in the container before:\n%s\nafter:\n%s", inside, now)
		}
	}
	l.down(one, "")
	if text := w.State(nil); strings.Contains(text, `"default-web"`) {
		t.Errorf("the store has\n%s", text)
	}
}
