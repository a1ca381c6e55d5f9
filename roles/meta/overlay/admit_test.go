package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestEgressAdmission: an ADD of a pod in a namespace with an egress address fails unless the agent says that it recognises the pod's packets, and
// leaves nothing. An ADD of another pod does not ask.
func TestEgressAdmission(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	network := netip.MustParsePrefix("10.244.0.0/16")
	must(t, store.WriteOverlay(path, &store.Overlay{
		BootID: strings.TrimSpace(string(boot)), Ready: true, IPMasq: true, MTU: 1450,
		IPv4:   &store.OverlayFamily{Networks: []netip.Prefix{network}, Subnet: netip.MustParsePrefix("10.244.1.0/24"), MTU: 1450},
		Egress: &store.OverlayEgress{Namespaces: []string{"team"}},
	}))
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	call := func(namespace, ifName string) rolestest.Call {
		return rolestest.Call{
			Type: "vxlan", Verb: "ADD", ID: "a", Netns: ns.Path(), IfName: ifName, Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=p",
			Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true}}`, path),
		}
	}
	end := func(c rolestest.Call) { t.Helper(); c.Verb = "DEL"; e.OK(c) }
	t.Cleanup(func() {
		gc := call("other", "eth0")
		gc.Verb, gc.Conf = "GC", strings.TrimSuffix(gc.Conf, "}")+`,"cni.dev/valid-attachments":[]}`
		e.OK(gc)
	})
	refused := func(what, want string) {
		t.Helper()
		before := ns.Snapshot(t)
		a := e.Run(call("team", "eth0"))
		if a.Code == 0 || !strings.Contains(a.Stdout, `"code": 11`) || !strings.Contains(a.Stdout, want) {
			t.Errorf("%s: exit %d: %s", what, a.Code, a.Stdout)
		}
		if after := ns.Snapshot(t); after != before {
			t.Errorf("%s: left is\n%s\nwhere was\n%s", what, after, before)
		}
	}
	refused("without an agent", "namespace team has an egress address")
	for _, c := range []rolestest.Call{call("other", "eth0"), call("team", "net1")} {
		e.OK(c)
		end(c)
	}
	var mu sync.Mutex
	var asked []string
	refusal := errors.New("not yet")
	server, stop, err := service.Start(t.Context(), filepath.Join(e.RunDir(), "agent.sock"), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(stop)
	refused("an agent without egress addresses", "namespace team has an egress address")
	server.Handle(map[string]service.Handler{service.EgressAdmit: func(_ context.Context, r *service.Request) (any, error) {
		var pod struct{ Namespace, Name string }
		err := r.Decode(&pod)
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, pod.Namespace+"/"+pod.Name)
		return nil, errors.Join(err, refusal)
	}})
	refused("refused", "not yet")
	mu.Lock()
	refusal = nil
	mu.Unlock()
	c := call("team", "eth0")
	e.OK(c)
	end(c)
	mu.Lock()
	defer mu.Unlock()
	if want := "team/p"; strings.Join(asked, " ") != want+" "+want {
		t.Errorf("asked %q", asked)
	}
}
