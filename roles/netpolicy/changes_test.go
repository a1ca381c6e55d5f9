package netpolicy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// rulesOf is a Ruleset in a form that can be compared: the members of its sets among all that the test can make.
func rulesOf(r *podfilter.Ruleset) map[string]string {
	all := map[string]string{"form": fmt.Sprint(r.Form), "pods": fmt.Sprint(r.Pods), "pending": fmt.Sprint(r.Pending)}
	for name, c := range r.Chains {
		all[name] = c.String()
	}
	for name, s := range r.Sets {
		text := fmt.Sprint(s.Len())
		for _, port := range []uint16{0, 80, 81, 82} {
			text += fmt.Sprint(" ", s.Has(podfilter.Key(netip.Addr{}, max(port, 1))))
			for n := range 12 {
				text += fmt.Sprint(" ", s.Has(podfilter.Key(address4(n), port)), s.Has(podfilter.Key(address6(n), port)))
			}
		}
		all[name] = text
	}
	return all
}

func address4(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(n + 1)}) }

func address6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd09::%x", n+1)) }

// TestChanges: after each of many random changes the Ruleset is the same as that of a new Table with the same objects, and the kernel has
// what a Filter would make that reads everything.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(7, uint64(randomRounds())))
	table, f := netpolicy.NewTable(), openFilter(t)
	table.ImplicitNamespaces = true
	locals := map[int]netpolicy.Local{}
	change := func() string {
		n, ns := r.IntN(12), pick(r, "x", "y")
		name := fmt.Sprint("o", r.IntN(9))
		switch r.IntN(12) {
		case 0, 1, 2:
			doc, err := json.Marshal(pick(r, randomPolicy, randomNarrow, randomNarrow)(r, name))
			if err != nil {
				t.Fatal(err)
			}
			put(t, table, string(doc))
			return "policy " + name
		case 3:
			table.RemovePolicy(ns, name)
			return "without policy " + ns + "/" + name
		case 4, 5, 6:
			table.PutPod(&netpolicy.Pod{
				Namespace: ns, Name: fmt.Sprint("p", n), UID: fmt.Sprint(r.IntN(2)), Labels: map[string]string{"app": pick(r, "a", "b"), "tier": pick(r, "a", "b")},
				Addresses: []netip.Addr{address4(n), address6(n)}, Ports: []netpolicy.PodPort{{Name: "web", Protocol: "UDP", Port: pick[uint16](r, 80, 81)}},
				Networks: map[string][]netip.Addr{"x/blue": {address4((n + 1) % 12)}}, Finished: r.IntN(8) == 0, Node: pick(r, "here", "there"),
			})
			return "pod"
		case 7:
			table.RemovePod(ns, fmt.Sprint("p", n))
			return "without pod"
		case 8, 9:
			if _, has := locals[n]; has && r.IntN(2) == 0 {
				delete(locals, n)
			} else {
				l := netpolicy.Local{Label: fmt.Sprint("cnibox:", n), Namespace: ns, Name: fmt.Sprint("p", n), UID: fmt.Sprint(r.IntN(2)), Addresses: []netip.Addr{address4(n), address6(n)}, Pending: r.IntN(6) == 0}
				if r.IntN(6) > 0 { // the kernel has no chains of a family that no pod of the node has
					l.Addresses = l.Addresses[:1]
				}
				if r.IntN(4) == 0 {
					l.Network = "x/blue"
				}
				if r.IntN(20) == 0 { // the address of another
					l.Addresses = []netip.Addr{address4(r.IntN(12))}
				}
				locals[n] = l
			}
			var all []netpolicy.Local
			for _, l := range locals {
				all = append(all, l)
			}
			table.SetLocal(all)
			return "attachments"
		case 10:
			doc, err := json.Marshal(randomPolicy(r, name)["spec"])
			if err != nil {
				t.Fatal(err)
			}
			put(t, table, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1beta2","kind":"MultiNetworkPolicy","metadata":{"name":"m","namespace":"x","annotations":{"%s":"%s"}},"spec":%s}`,
				netpolicy.NetworksKey, pick(r, "blue", "red", "blue, red"), doc))
			return "multi"
		}
		if r.IntN(3) > 0 {
			put(t, table, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"%s","labels":{"app":"%s"}}}`, ns, pick(r, "a", "b")))
			return "namespace"
		}
		if r.IntN(2) > 0 {
			table.RemoveClusterPolicy("Admin-1")
			return "without cluster policy"
		}
		putCluster(t, table, toNodes("Admin", 1, pick(r, "Deny", "Accept", "Pass"), `{"nodes":{}}`))
		return "cluster policy"
	}
	list := func() string {
		out, err := exec.Command("nft", "-s", "list", "table", "inet", "cnibox_policy").Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.FieldsFunc(string(out), func(r rune) bool { return strings.ContainsRune("\n,{}", r) }) // elements have no order
		for i := range lines {
			lines[i] = strings.TrimPrefix(strings.TrimSpace(lines[i]), "elements = ")
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	onHere := func(p *netpolicy.Pod) bool { return p.Node == "here" }
	table.OnNode = onHere
	copyOf := func() *netpolicy.Table {
		c := table.State().Table()
		c.OnNode = onHere
		for _, p := range c.Pods() {
			c.RemovePod(p.Namespace, p.Name)
			c.PutPod(p)
		}
		return c
	}
	var done []string
	for i := range 1500 {
		done = append(done, change())
		if have, want := rulesOf(table.Ruleset()), rulesOf(copyOf().Ruleset()); !reflect.DeepEqual(have, want) {
			t.Fatalf("after %q:\n%v\nwant\n%v", done[max(0, i-5):], have, want)
		}
		ensure(t, f, table) // it reads the kernel once
		if i%50 != 0 {
			continue
		}
		have := list()
		other, err := podfilter.Open(netops.New(netops.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := other.Ensure(t.Context(), linked(table)); err != nil {
			t.Fatal(err)
		}
		if want := list(); have != want {
			t.Fatalf("after %q the kernel differs:\n%s", done[max(0, i-50):], cmp.Diff(have, want))
		}
		_ = other.Close()
	}
}
