package policy

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

// TestUnusableObjects: an object of the API that the agent cannot use does not keep others from being read, fails closed, and is named with its
// field. Its deletion or correction ends that.
func TestUnusableObjects(t *testing.T) {
	s := NewKube(nil, "node-1", slog.New(slog.NewTextHandler(t.Output(), nil)))
	table, same := netpolicy.NewTable(), &shared{seed: maphash.MakeSeed()}
	policy := func(text string) {
		t.Helper()
		o := new(kubePolicy)
		if err := json.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		s.policy(o, same)(table)
	}
	faults := func(what string, want ...string) {
		t.Helper()
		var is []string
		for _, f := range table.State().Faults {
			is = append(is, f.Object+" "+f.Field)
		}
		if fmt.Sprint(is) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", what, is, want)
		}
	}
	const head = `{"metadata":{"namespace":"default","name":"web"},"spec":`
	policy(head + `{"podSelector":"web"}}`)
	faults("a wrong type", "NetworkPolicy default/web spec.podSelector")
	for _, p := range table.State().Policies {
		if len(p.Pods) > 0 || p.Isolates != [2]bool{true, true} || len(p.Allows[0])+len(p.Allows[1]) > 0 {
			t.Errorf("a wrong type: %+v", p)
		}
	}
	policy(head + `{"podSelector":{},"ingress":[{"ports":[{"port":"no name"}]}]}}`)
	faults("a wrong value", "NetworkPolicy default/web spec.ingress[0].ports[0].port")
	policy(head + `{"podSelector":{}}}`)
	faults("a valid one")

	multi := new(kubeMultiPolicy)
	if err := json.Unmarshal([]byte(head+`{"ingress":7}}`), multi); err != nil {
		t.Fatal(err)
	}
	s.multiPolicy(multi)(table)
	faults("no network", "MultiNetworkPolicy default/web spec.ingress")
	cluster := new(kubeClusterPolicy)
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"guard"},"spec":{"tier":"Admin","priority":"high","subject":{"namespaces":{}}}}`), cluster); err != nil {
		t.Fatal(err)
	}
	_, change := s.clusterPolicy(cluster)
	change(table)
	faults("a cluster policy", "ClusterNetworkPolicy guard spec.priority", "MultiNetworkPolicy default/web spec.ingress")
}

// TestUnusableClusterPolicy: a ClusterNetworkPolicy whose rules are no list denies all in that direction, unless a valid state of it is known,
// which stays in force. The fault says so.
func TestUnusableClusterPolicy(t *testing.T) {
	s := NewKube(nil, "node-1", slog.New(slog.NewTextHandler(t.Output(), nil)))
	table := netpolicy.NewTable()
	put := func(spec string) {
		t.Helper()
		o := new(kubeClusterPolicy)
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"guard"},"spec":`+spec+`}`), o); err != nil {
			t.Fatal(err)
		}
		_, change := s.clusterPolicy(o)
		change(table)
	}
	check := func(what, field, inForce string, ingress, egress netpolicy.Action) {
		t.Helper()
		var is, fault string
		for _, p := range table.State().Cluster {
			for d, rules := range p.Rules {
				for _, r := range rules {
					is += fmt.Sprint(d, " ", r.Action, len(r.Peers), ";")
				}
			}
		}
		want := ""
		for d, a := range map[netpolicy.Direction]netpolicy.Action{netpolicy.Ingress: ingress, netpolicy.Egress: egress} {
			if a != "" && !strings.Contains(is, fmt.Sprintf("%d %s", d, a)) || a == "" && strings.Contains(is, fmt.Sprint(int(d), " ")) {
				want = fmt.Sprint(ingress, " and ", egress)
			}
		}
		for _, f := range table.State().Faults {
			fault += f.Field + ": " + f.InForce
		}
		if want != "" || !strings.HasPrefix(fault, field) || !strings.Contains(fault, inForce) {
			t.Errorf("%s: rules %q, want %s; fault %q, want %q and %q", what, is, want, fault, field, inForce)
		}
	}
	const head = `{"tier":"Admin","priority":1,"subject":{"namespaces":{}},`
	const accepts = `"egress":[{"action":"Accept","to":[{"namespaces":{}}]}],`
	put(head + accepts + `"ingress":"none"}`)
	check("a text", "spec.ingress", "deny all", netpolicy.Deny, netpolicy.Accept)
	put(`7`)
	check("no object", "spec", "deny all", netpolicy.Deny, netpolicy.Deny)
	put(head + accepts + `"ingress":[]}`)
	check("a valid one", "", "", "", netpolicy.Accept)
	put(head + `"ingress":{},"egress":[]}`)
	check("an object after a valid one", "spec.ingress", "its last valid state is in force", "", netpolicy.Accept)
	put(`7`)
	check("no object after a valid one", "spec", "its last valid state is in force", "", netpolicy.Accept)
	s.removeClusterPolicy(table, "guard")
	put(head + `"egress":7}`)
	check("after its deletion", "spec.egress", "deny all", "", netpolicy.Deny)
}
