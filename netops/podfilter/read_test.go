package podfilter

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/podtable"
	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// TestServices: the file of a node with a service and a server, and of one with the module only.
func TestServices(t *testing.T) {
	const titles = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for text, want := range map[string]bool{
		"": false, titles: false,
		titles + "TCP  0A600001:01BB rr \n  -> C0A80002:192B      Masq    1      0          0         \n": true,
		titles + "UDP  [fd00:0000:0000:0000:0000:0000:0000:000a]:0035 rr \n":                              true,
		titles + "FWM  00000001 rr \n": true,
	} {
		if got := listsService(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestBypass: a flowtable is an error that names it, and a node without one has none.
func TestBypass(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Bypass(t.Context()); err != nil {
		t.Error(err)
	}
	out, err := exec.Command("nft", "add table inet fast; add flowtable inet fast pods { hook ingress priority 0; devices = { lo }; }").CombinedOutput()
	if err != nil && os.Getenv("CNIBOX_TEST_VM") == "" {
		t.Skip("this kernel has no flowtables: make test-vm")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := f.Bypass(t.Context()); err == nil || !strings.Contains(err.Error(), "flowtable fast pods") {
		t.Error(err)
	}
}

// TestRecheck reads the table again only if a program has changed nftables since.
func TestRecheck(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	refresh := func() (again bool) {
		t.Helper()
		f.have.sets["known"] = nil
		f.Recheck()
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, known := f.have.sets["known"]
		return !known
	}
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if refresh() {
		t.Error("it was read again without a change")
	}
	if out, err := exec.Command("nft", "add table inet other").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !refresh() {
		t.Error("it was not read again after a change")
	}
}

// TestRecheckKeeps: after Recheck no element goes that the caller does not know: it could not read its records, and answers an ADD.
func TestRecheckKeeps(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost with it
	want := NewRuleset()
	want.PutPod(netip.MustParseAddr("10.0.0.1"), Pod{Ingress: Deny, Label: "cnibox:1"}, false)
	if err := f.Ensure(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for _, records := range []bool{false, true} {
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !records {
			f.Recheck()
		}
		if err := f.Ensure(t.Context(), NewRuleset()); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("nft", "list", "map", "inet", "cnibox_policy", "pod_ingress4").CombinedOutput()
		if has := strings.Contains(string(out), "10.0.0.1"); err != nil || has == records {
			t.Errorf("records read: %v, has the pod: %v, %v", records, has, err)
		}
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUnknownPod: while the kernel has an element of an ADD that the caller does not know yet, its chain stays, and the rules are not read
// again. Both go after that.
func TestUnknownPod(t *testing.T) {
	f, err := Open(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost with it
	using := func(chain string) *Ruleset {
		r := NewRuleset()
		r.Use([]*Chain{{Name: chain, Rules: []Rule{{Verdict: "drop"}}}}, nil)
		r.PutPod(netip.MustParseAddr("10.0.0.1"), Pod{Ingress: chain, Label: "cnibox:1"}, false)
		return r
	}
	chains := func() string {
		t.Helper()
		out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		all := ""
		for _, name := range []string{"c4", "d4"} {
			if strings.Contains(string(out), "chain "+name+" ") {
				all += name
			}
		}
		return all
	}
	if err := f.Ensure(t.Context(), using("c")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "add element inet cnibox_policy pod_ingress4 { 10.0.0.2 : goto c4 }").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := using("d")
	f.disturbed(nft.Watched{Sets: podtable.PodSets})
	if err := f.Ensure(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if have := chains(); have != "c4d4" || !f.knowsRules {
		t.Errorf("chains %s, the rules are known: %v", have, f.knowsRules)
	}
	for range 2 {
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.Ensure(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if have := chains(); have != "d4" || !f.knowsRules {
			t.Errorf("afterwards: chains %s, the rules are known: %v", have, f.knowsRules)
		}
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
