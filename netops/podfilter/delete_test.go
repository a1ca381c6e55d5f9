package podfilter

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// TestDeleteStale: the elements of an address belong to another pod by now, and the Filter has not heard of it. Delete leaves them.
func TestDeleteStale(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Remove(t.Context()); _ = f.Close() })
	a := netip.MustParseAddr("10.0.0.1")
	r := NewRuleset()
	r.PutPod(a, Pod{Label: "cnibox:1", Egress: Deny, Ingress: Deny}, false)
	if err := f.Ensure(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	other := netops.New(netops.Options{})
	defer other.Close()
	f.mu.Lock() // the monitor does not run, as in a frozen process
	one := &netops.PodPolicy{Label: "cnibox:1", Namespace: "n", Name: "1", Addresses: []netip.Addr{a}}
	two := &netops.PodPolicy{Label: "cnibox:2", Namespace: "n", Name: "2", Addresses: []netip.Addr{a}, Egress: Deny, Ingress: Deny}
	if err := other.DeletePodPolicy(t.Context(), one); err != nil { // its DEL gave up waiting
		t.Fatal(err)
	}
	if err := other.Ensure(t.Context(), netops.Spec{Objects: []netops.Object{two}}, nil); err != nil { // the ADD of the next pod
		t.Fatal(err)
	}
	f.mu.Unlock()
	done, err := f.Delete(t.Context(), "cnibox:1")
	out, _ := exec.Command("nft", "list", "table", "inet", "cnibox_policy").CombinedOutput()
	if !strings.Contains(string(out), "cnibox:2") {
		t.Errorf("%v, %v: the elements of the next pod are deleted: it is open\n%s", done, err, out)
	}
}
