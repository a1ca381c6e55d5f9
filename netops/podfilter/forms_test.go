package podfilter

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/nftlist"
)

// TestForms: whatever base chains a table had, it gets those of the new Form, also after another program flushed the table.
func TestForms(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost with it
	list := func() string {
		t.Helper()
		out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		all := strings.Split(string(out), "\tchain ")
		for i := range all {
			all[i] = strings.TrimRight(all[i], "}\t\n") // of the chain, and of the table behind the last one
		}
		slices.Sort(all) // the kernel has chains in the order in which they were made
		return strings.Join(all, "\n")
	}
	// ensure makes a form as after Refresh on a node with or without services.
	ensure := func(form Form, flush bool) string {
		t.Helper()
		if flush {
			if out, err := exec.Command("nft", "flush", "table", "inet", "cnibox_policy").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			f.Recheck()
		}
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.services, f.last = form.Services, nil
		form.Services = false
		err := f.Ensure(t.Context(), &Ruleset{
			Form: form, Chains: map[string]*Chain{"c": {Name: "c", Rules: []Rule{{OfNode: true, Verdict: "accept"}, {Verdict: "drop"}}}},
			Pods: map[netip.Addr]Pod{netip.MustParseAddr("10.0.0.1"): {Egress: "c"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return list()
	}
	var forms []Form
	want := map[Form]string{}
	for n := range 8 {
		form := Form{KeepEstablished: n&1 != 0, Node: n&2 != 0, Services: n&4 != 0}
		all := ensure(form, false)
		for text, is := range map[string]bool{"ct state established accept": form.KeepEstablished, "to_node {": form.Node, "service_egress {": form.Services} {
			if strings.Contains(all, text) != is {
				t.Errorf("%+v makes\n%s", form, all)
			}
		}
		forms, want[form] = append(forms, form), all
		if err := f.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range forms {
		for n, to := range forms {
			ensure(from, false)
			if have := ensure(to, n%2 > 0); have != want[to] {
				t.Errorf("from %+v to %+v:\n%s\nwant\n%s", from, to, have, want[to])
			}
		}
	}
	if err := nftlist.Find(t).Check(); err != nil { // the last form has all chains
		t.Error(err)
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWithoutFib: on a kernel without the expression fib the error says what is missing, and the pods are denied everything.
func TestWithoutFib(t *testing.T) {
	if os.Getenv("CNIBOX_TEST_VM") == "" {
		t.Skip("it needs a kernel whose modules it can remove: make test-vm")
	}
	const loader = "/proc/sys/kernel/modprobe"
	before, err := os.ReadFile(loader)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loader, []byte("/bin/false"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(loader, before, 0) //nolint:errcheck // the machine ends with the tests
	await.Until(t, func() bool {          // the kernel deletes the rules of earlier tests later
		err = unix.DeleteModule("nft_fib_inet", unix.O_NONBLOCK)
		return err == nil || errors.Is(err, unix.ENOENT)
	}, func() string { return err.Error() })
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost with it
	err = f.Ensure(t.Context(), &Ruleset{
		Chains: map[string]*Chain{"c": {Name: "c", Rules: []Rule{{OfNode: true, Verdict: "accept"}}}},
		Pods:   map[netip.Addr]Pod{netip.MustParseAddr("10.0.0.1"): {Egress: "c"}},
	})
	if err == nil || !strings.Contains(err.Error(), "nft_fib_inet") {
		t.Error(err)
	}
	out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.0.0.1 : goto deny") {
		t.Errorf("%v: %s", err, out)
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
