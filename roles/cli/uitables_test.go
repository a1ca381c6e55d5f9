package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
)

// TestPageTables: the newest denials come first and have names, and a connection has the policies that decide about it.
func TestPageTables(t *testing.T) {
	client, server := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	denied := control.Denied{Time: time.Now(), Flow: netpolicy.Flow{Client: client, Server: server, Protocol: "TCP", Port: 80}, ServerPod: "default/web", Why: "isolated", Packets: 3}
	all := make([]control.Denied, uiDenials+1)
	all[0].Why, all[uiDenials] = "too old", denied
	rows := deniedRows(all).Rows
	if have := strings.Join(rows[0][1:], "|"); len(rows) != uiDenials || have != "tcp|10.0.0.2|default/web (10.0.0.1:80)|3|isolated" {
		t.Errorf("%d rows, the first is %s", len(rows), have)
	}
	state := &netpolicy.State{ImplicitNamespaces: true}
	for name, a := range map[string]netip.Addr{"web": server, "client": client} {
		p := &netpolicy.Pod{Namespace: "default", Name: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{a}}
		state.Pods = append(state.Pods, p)
		state.Local = append(state.Local, netpolicy.Local{Label: name, Namespace: "default", Name: name, Addresses: p.Addresses})
	}
	o, err := netpolicy.Decode([]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"web"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":80}]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	state.Policies = append(state.Policies, o.Policy)
	view := newPolicyView(state, nil)
	for port, want := range map[uint16]string{80: "ingress allowed by default/web", 81: "ingress denied by default/web"} {
		if have := judged(view, &netops.Connection{Protocol: unix.IPPROTO_TCP, Client: client, Server: server, Port: port}); have != want {
			t.Errorf("port %d: %q", port, have)
		}
	}
	if have := judged(nil, &netops.Connection{}); have != "-" {
		t.Errorf("without policies: %q", have)
	}
	if have := endOf("", "10.0.0.1:0"); have != "10.0.0.1" {
		t.Errorf("without a port: %q", have)
	}
}
