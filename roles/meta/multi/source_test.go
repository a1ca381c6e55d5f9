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
	netopstest.NeedKind(t, "macvlan")
	w := newWorld(t)
	w.network("x", `{"name":"net-x","type":"macvlan","master":"lower","linkInContainer":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`)
	w.network("e", `{"name":"net-e","cniVersion":"1.1.0","plugins":[{"type":"bridge","bridge":"br-b"},{"type":"stranger"}]}`)
	w.wish("e@lower,x,s@last")
	start := w.warm()
	a := w.OK(w.call("ADD"))
	if upper, lower := w.ns.Link(t, "net2"), w.ns.Link(t, "lower"); upper.Type() != "macvlan" || upper.Attrs().ParentIndex != lower.Attrs().Index {
		t.Errorf("net2 is %s on %d, lower %d", upper.Type(), upper.Attrs().ParentIndex, lower.Attrs().Index)
	}
	w.OK(w.check(a.Stdout))
	w.OK(w.call("DEL"))
	w.same(start, "after DEL")
	calls, _ := w.calls()
	if want := "ADD container1 lower,ADD container1 last,CHECK container1 lower,CHECK container1 last,DEL container1 last,DEL container1 lower"; strings.Join(calls, ",") != want {
		t.Errorf("calls %q, want %s", calls, want)
	}
}
