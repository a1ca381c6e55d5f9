package hostlocal

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// referenceGC runs the reference's GC with the list of valid containers. It skips the test if the reference has none: that of v1.9.1
// succeeds and does nothing.
func (b *bed) referenceGC(t *testing.T, ipam, list string) {
	t.Helper()
	about, err := exec.Command(peer(t)).CombinedOutput()
	if err != nil || bytes.Contains(about, []byte("v1.9.")) {
		t.Skipf("the reference has no GC: %s, %v", about, err)
	}
	cmd := exec.Command(peer(t))
	cmd.Env = []string{"CNI_COMMAND=GC", "CNI_PATH=/none"}
	cmd.Stdin = strings.NewReader(b.conf(ipam, list))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("GC: %v: %s", err, out)
	}
}

func validList(ids ...string) string {
	list := []map[string]string{}
	for _, id := range ids {
		list = append(list, map[string]string{"containerID": id, "ifname": "eth0"})
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return `"cni.dev/valid-attachments": ` + string(text)
}

// TestMirrorReferenceGC: the reference's GC keeps the files of cnibox's attachments in its list, and cnibox's GC those of the reference.
// What one side's GC releases, the other gives to a new container, and a late DEL of the old container does not release it.
func TestMirrorReferenceGC(t *testing.T) {
	const ipam = `{"rangeStart": "10.1.0.2", "rangeEnd": "10.1.0.5", "subnet": "10.1.0.0/24"}`
	b := newBed(t)
	a := b.handlerFor(t, ipam)
	theirs := func(verb, id string) []string {
		t.Helper()
		ips, err := b.reference(t, verb, id, ipam)
		if err != nil {
			t.Fatal(err)
		}
		return ips
	}
	check := func(id string) {
		t.Helper()
		req := checkRequest(id)
		if err := a.Check(t.Context(), b.Host, req); err != nil {
			t.Errorf("CHECK %s: %v", id, err)
		}
		theirs("CHECK", id)
	}
	full := func() {
		t.Helper()
		if res, err := a.Add(t.Context(), b.Host, request1("one-more")); err == nil {
			t.Errorf("ADD: %v, but no address is free", ipsOf(res))
		}
	}
	theirs("DEL", "nobody") // skips without the binary
	b.add(t, a, request1("ours"))
	b.add(t, a, request1("ours-stale"))
	theirs("ADD", "theirs")
	theirs("ADD", "theirs-stale")
	valid := validList("ours", "theirs")
	b.referenceGC(t, ipam, valid)
	b.referenceGC(t, ipam, valid)
	expect(t, b.files(t), "10.1.0.2 ours eth0", "10.1.0.4 theirs eth0", "lock ")
	check("ours")
	check("theirs")

	// The reference gives away what its GC released. cnibox imports this, and the late DEL of the old container changes nothing.
	expect(t, theirs("ADD", "next"), "10.1.0.3")
	expect(t, theirs("ADD", "last"), "10.1.0.5")
	full()
	b.del(t, a, request1("ours-stale"))
	b.del(t, a, request1("theirs-stale"))
	all := []string{"10.1.0.2 ours eth0", "10.1.0.3 next eth0", "10.1.0.4 theirs eth0", "10.1.0.5 last eth0"}
	expect(t, b.leases(t), all...)
	expect(t, b.files(t), append(all, "lock ")...)

	// cnibox's GC releases an attachment of each side, and both sides use the addresses.
	for range 2 { // the first keeps the files of imported leases for the GC of chained roles
		if err := a.GC(t.Context(), b.Host, gcRequest("ours", "next")); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, b.leases(t), "10.1.0.2 ours eth0", "10.1.0.3 next eth0")
	expect(t, b.files(t), "10.1.0.2 ours eth0", "10.1.0.3 next eth0", "lock ")
	expect(t, theirs("ADD", "again"), "10.1.0.4")
	expect(t, b.add(t, a, request1("ours-again")), "10.1.0.5")
	b.referenceGC(t, ipam, validList("ours", "next", "again", "ours-again"))
	for _, id := range []string{"ours", "next", "again", "ours-again"} {
		check(id)
	}

	// Without a list the reference releases all. cnibox's attachments keep their leases: no container of cnibox gets their addresses.
	b.referenceGC(t, ipam, `"x": 0`)
	expect(t, b.files(t), "lock ")
	full()
	for _, id := range []string{"ours", "next", "again", "ours-again"} {
		b.del(t, a, request1(id))
	}
	expect(t, b.leases(t))
	b.expectNoLeaseFiles(t)
}
