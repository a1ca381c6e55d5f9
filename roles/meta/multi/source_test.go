package multi_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestSources: the runtime's annotations precede CNI_ARGS, and these precede args.cni, which may
// have a JSON list instead of a string.
func TestSources(t *testing.T) {
	const key = "k8s.v1.cni.cncf.io/networks"
	runtime := `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}`
	args := func(list string) string { return `"args":{"cni":{"` + key + `":` + list + `}}` }
	environment := `;K8S_ANNOT={"` + key + `":"c@environment"}`
	for _, c := range []struct{ name, keys, environment, want string }{
		{"all", strings.Replace(runtime, "{}", `{"`+key+`":"b@runtime"}`, 1) + "," + args(`"b@arguments"`), environment, "net-a@eth0 web/b@runtime"},
		{"no annotation", runtime + "," + args(`"b@arguments"`), environment, "net-a@eth0"},
		{"CNI_ARGS", args(`"b@arguments"`), environment, "net-a@eth0 web/c@environment"},
		{"args.cni", args(`"b@arguments"`), "", "net-a@eth0 web/b@arguments"},
		{"list", args(`[{"name":"b","interface":"list"}]`), "", "net-a@eth0 web/b@list"},
		{"nobody", args(`""`), "", "net-a@eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			call := w.call("ADD")
			call.Conf = strings.Replace(call.Conf, runtime, c.keys, 1)
			call.Args += c.environment
			w.OK(call)
			if w.status() != c.want {
				t.Errorf("network-status %q, want %q", w.status(), c.want)
			}
			w.OK(w.bare())
		})
	}
}

// TestStacked: a network may use an interface that another network creates in the container, with
// executed plugins or not. Then the networks keep their order.
func TestStacked(t *testing.T) {
	const upper = `"type":"macvlan","master":"lower","linkInContainer":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`
	t.Run("plugin", func(t *testing.T) { stackedOn(t, `{"name":"net-x",`+upper) })
	t.Run("fused", func(t *testing.T) {
		stackedOn(t, `{"name":"net-x","cniVersion":"1.1.0","plugins":[{"type":"chain","plugins":[{`+upper+`,{"type":"tuning"}]}]}`)
	})
}

func stackedOn(t *testing.T, upper string) {
	t.Helper()
	netopstest.NeedKind(t, "macvlan")
	w := newWorld(t)
	w.network("x", upper)
	w.network("e", `{"name":"net-e","cniVersion":"1.1.0","plugins":[{"type":"bridge","bridge":"br-b"},{"type":"thirdparty"}]}`)
	w.wish("e@lower,x,s@last")
	start := w.warm()
	a := w.OK(w.call("ADD"))
	if link, lower := w.ns.Link(t, "net2"), w.ns.Link(t, "lower"); link.Type() != "macvlan" || link.Attrs().ParentIndex != lower.Attrs().Index {
		t.Errorf("net2 is %s on %d, lower %d", link.Type(), link.Attrs().ParentIndex, lower.Attrs().Index)
	}
	w.OK(w.check(a.Stdout))
	w.OK(w.call("DEL"))
	w.same(start, "after DEL")
	calls, _ := w.calls()
	if want := "ADD container1 lower,ADD container1 last,CHECK container1 lower,CHECK container1 last,DEL container1 last,DEL container1 lower"; strings.Join(calls, ",") != want {
		t.Errorf("calls %q, want %s", calls, want)
	}
}

// TestFused: a pod's request, here for no addresses, concerns each plugin of a fused
// list.
func TestFused(t *testing.T) {
	w := newWorld(t)
	w.network("f", `{"name":"net-b","cniVersion":"1.1.0","plugins":[{"type":"chain","capabilities":{"mac":true},"plugins":[
		{"type":"bridge","bridge":"br-b","capabilities":{"mac":true},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.8.0.0/24"}]]}},{"type":"tuning","mtu":1400}]}]}`)
	w.wish(`[{"name":"f","io.github.cnibox":{"ip":"none"},"mac":"02:00:00:00:00:77"}]`)
	start := w.warm()
	a := w.OK(w.call("ADD"))
	if link := w.ns.Link(t, "net1"); link.Attrs().MTU != 1400 || link.Attrs().HardwareAddr.String() != "02:00:00:00:00:77" {
		t.Errorf("net1 has MTU %d and MAC %s", link.Attrs().MTU, link.Attrs().HardwareAddr)
	}
	if state := w.state(); strings.Contains(state, "10.8.0.") {
		t.Errorf("an address where none was wanted:\n%s", state)
	}
	w.OK(w.check(a.Stdout))
	w.OK(w.call("DEL"))
	w.same(start, "after DEL")
}
