//go:build kube

package policy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
)

// peerNode is another node: the policies that it knows, and when its peers got addresses.
type peerNode struct {
	mu    sync.Mutex
	table *netpolicy.Table
	known map[netip.Addr]time.Time
}

func (p *peerNode) put(f func(*netpolicy.Table)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f == nil {
		return
	}
	f(p.table)
	now := time.Now()
	for _, of := range p.table.State().Given {
		for _, g := range of {
			for _, a := range g.Addresses {
				if _, ok := p.known[a]; !ok && p.has(a) {
					p.known[a] = now
				}
			}
		}
	}
}

// has reports whether a set of peers has an address.
func (p *peerNode) has(a netip.Addr) bool {
	for _, s := range p.table.Ruleset().Sets {
		if s.Kind == podfilter.Addresses && s.Has(podfilter.Key(a, 0)) {
			return true
		}
	}
	return false
}

func (p *peerNode) admits(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has(a)
}

// TestKubePublish: another node admits a pod as soon as its ADD has an address, without a status, and with the rights of the documentation.
// What the status has is published no longer. The Node owns what is left.
func TestKubePublish(t *testing.T) {
	s, client := openServer(t)
	s.Must(t, http.MethodPost, "/api/v1/nodes", "", object{"metadata": object{"name": "node-1"}})
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", object{"metadata": object{"name": "cnibox-policy"}})
	s.Must(t, http.MethodPost, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "", object{
		"metadata": object{"name": "web"}, "spec": object{
			"podSelector": object{"matchLabels": object{"app": "web"}},
			"ingress":     []any{object{"from": []any{object{"podSelector": object{"matchLabels": object{"role": "client"}}}}}},
		},
	})
	far := &peerNode{table: netpolicy.NewTable(), known: map[netip.Addr]time.Time{}}
	far.table.SetLocal([]netpolicy.Local{{Label: "web", Namespace: "default", Name: "web", UID: createPod(t, s, "web", "node-2", object{"app": "web"}, nil), Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.9")}}})
	n := newNode(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { policy.NewKube(client, "node-2", n.host.Log).Run(ctx, far.put) })
	t.Cleanup(func() { stop(); running.Wait() })

	near := n.pod(1, 2, "")
	near.call.Args = podArgs(near.call.ID, createPod(t, s, near.call.ID, "node-1", object{"role": "client"}, nil))
	end := n.run(policy.NewKube(client, "node-1", n.host.Log))
	n.add(near)
	address := near.addresses[0]
	await.Until(t, func() bool { return far.admits(address) }, func() string { return "the other node does not admit the pod" })
	published := func() string {
		return string(s.Must(t, http.MethodGet, "/api/v1/namespaces/cnibox-policy/configmaps/node-1", "", nil))
	}
	if text := published(); !strings.Contains(text, address.String()) || !strings.Contains(text, `"kind":"Node"`) {
		t.Error(text)
	}
	s.Must(t, http.MethodPatch, podsPath+"/"+near.call.ID+"/status", rest.MergePatch, object{"status": object{
		"phase": "Running", "podIP": address.String(), "podIPs": []any{object{"ip": address.String()}, object{"ip": near.addresses[1].String()}},
	}})
	await.Until(t, func() bool { return !strings.Contains(published(), address.String()) }, func() string { return "it is still published: " + published() })
	if !far.admits(address) {
		t.Error("the address of the status is not admitted")
	}
	end()

	// 250 ADDs of a node. Only their time is reported.
	const count = 250
	given, called := map[string]netpolicy.Given{}, map[netip.Addr]time.Time{}
	var uids []string
	for i := range count {
		uids = append(uids, createPod(t, s, fmt.Sprint("many-", i), "node-1", object{"role": "client"}, nil))
	}
	source := policy.NewKube(client, "node-1", n.host.Log)
	running.Go(func() { source.Run(ctx, func(func(*netpolicy.Table)) {}) })
	for i, uid := range uids {
		a := netip.AddrFrom4([4]byte{10, 8, byte(i / 250), byte(1 + i%250)})
		now := map[string]netpolicy.Given{fmt.Sprint("default/many-", i): {UID: uid, Addresses: []netip.Addr{a}}}
		for key, g := range given {
			now[key] = g
		}
		given = now
		called[a] = time.Now()
		source.Publish(given)
		if i%16 == 15 { // so many ADDs run at once
			await.Until(t, func() bool { return far.admits(a) }, func() string { return "the other node does not admit a pod" })
		}
	}
	await.Until(t, func() bool { far.mu.Lock(); defer far.mu.Unlock(); return len(far.known) > count }, func() string { return fmt.Sprint(len(far.known)) })
	var times []time.Duration
	for a, at := range called {
		times = append(times, far.known[a].Sub(at))
	}
	slices.Sort(times)
	t.Logf("from an ADD until the other node admits the pod, %d ADDs: median %s, 99 %% within %s, longest %s", count, times[count/2], times[count*99/100], times[count-1])
}
