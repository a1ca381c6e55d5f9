package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// newNodeBed returns a node with its own liveness, and a clock that the test sets.
func newNodeBed(t *testing.T) *stickyBed {
	t.Helper()
	b := newStickyBed(t)
	o := storeOptions(t, b.dir, "")
	h, done, err := node.Open(context.Background(), node.Options{RunDir: o.RunDir, StateDir: o.StateDir, CacheDirs: []string{b.dir}, Role: "host-local", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	h.Now = b.Now
	b.Host = h
	return b
}

// verb runs `cnibox ipam VERB`.
func (b *stickyBed) verb(name string, flags map[string]string, args ...string) (any, error) {
	for _, v := range commands() {
		if v.Name == "ipam "+name {
			return v.Run(context.Background(), b.Host, flags, args)
		}
	}
	return nil, errors.New("no such verb")
}

func (b *stickyBed) verbText(t *testing.T, name string, flags map[string]string, args ...string) string {
	t.Helper()
	out, err := b.verb(name, flags, args...)
	if err != nil {
		t.Fatalf("ipam %s %v: %v", name, args, err)
	}
	if s, ok := out.(interface{ String() string }); ok {
		return s.String()
	}
	return out.(string)
}

func (b *stickyBed) verbFails(t *testing.T, want, name string, flags map[string]string, args ...string) {
	t.Helper()
	out, err := b.verb(name, flags, args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ipam %s %v: %v, %v; want %q", name, args, out, err, want)
	}
}

// rows returns the rows of a table without the paths of namespaces.
func rows(t *testing.T, v any) []string {
	t.Helper()
	_, rows := v.(interface {
		Table() ([]string, [][]string)
	}).Table()
	var out []string
	for _, r := range rows {
		if len(r) > 6 {
			r[6] = ""
		}
		out = append(out, strings.Join(r, " "))
	}
	return out
}

// confOf writes a network's list with an "ipam" object, and returns its path.
func (b *stickyBed) confOf(t *testing.T, ipam string) string {
	t.Helper()
	file := filepath.Join(b.dir, "net.conflist")
	text := `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "tuning"}, ` + strings.Replace(b.conf("{"+ipam+"}"), `"name": "net", `, "", 1) + `]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestShow(t *testing.T) {
	b := newNodeBed(t)
	const ipam = `"ranges": [[{"subnet": "10.1.0.0/28"}]], "sticky": {"ttl": "60s"}`
	a := b.handlerFor(t, ipam)
	a.Life = leasing.NodeLiveness()
	alive, _ := child(t)
	gone, kill := child(t)
	b.add(t, a, inNetns(podRequest(t, "a", "alive"), alive))
	b.add(t, a, inNetns(podRequest(t, "b", "gone"), gone))
	kill()
	for _, pod := range []string{"expired", "cooling", "kept"} {
		b.add(t, a, podRequest(t, pod, pod))
	}
	b.del(t, a, podRequest(t, "expired", ""))
	b.pass(2 * time.Minute)
	quick := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/28"}]], "sticky": {"ttl": 0}`)
	b.del(t, a, podRequest(t, "cooling", ""))
	b.add(t, quick, podRequest(t, "cooling2", "cooling"))
	b.del(t, quick, podRequest(t, "cooling2", ""))
	b.del(t, a, podRequest(t, "kept", ""))
	if err := os.MkdirAll(filepath.Join(b.dataDir(), "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dataDir(), "net", "10.1.0.9"), []byte("old\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.importOnce(context.Background(), b.Host, "net"); err != nil {
		t.Fatal(err)
	}
	b.verbText(t, "reserve", map[string]string{"until": "1h"}, "10.1.0.10")
	b.pass(time.Second)
	out, err := b.verb("show", map[string]string{"conf": b.confOf(t, ipam)})
	if err != nil {
		t.Fatal(err)
	}
	got := rows(t, out)
	for i := range got {
		if strings.HasPrefix(got[i], "10.1.0.9 ") {
			got[i] = strings.Join(strings.Fields(got[i])[:6], " ") // the time of its file is the kernel's
		}
	}
	expect(t, got,
		"10.1.0.2 net live default/alive a eth0  2m1s -",
		"10.1.0.3 net leaked default/gone b eth0  2m1s -",
		"10.1.0.4 net expired default/expired expired eth0  2m1s 0s",
		"10.1.0.5 net cooling default/cooling cooling2 eth0  1s 29s",
		"10.1.0.6 net sticky default/kept kept eth0  1s 59s",
		"10.1.0.9 net imported - old eth0",
		"10.1.0.10 net reserved reserved:10.1.0.10 - -  1s 59m59s",
	)
	if text := out.(*leasing.Shown).String(); !strings.HasSuffix(text, `3 leased, 3 reserved; 10.1.0.0/28: 6 of 13 used`) {
		t.Error(text)
	}
	six := leasing.Shown{Pools: []leasing.ShownPool{{Sets: []leasing.ShownSet{{Subnets: "fd00::/64", Used: 4, Size: "18446744073709551614"}}}}}
	if text := six.String(); !strings.HasSuffix(text, "; fd00::/64: 4 used") {
		t.Error(text)
	}
	if _, err := b.verb("show", nil, "10.1.0.6", "other", "10.1.0.11"); !errors.Is(err, store.ErrNotFound) ||
		!strings.Contains(err.Error(), `network "other" has neither`) || !strings.Contains(err.Error(), "10.1.0.11 is neither") {
		t.Errorf("what is not there: %v", err)
	}
	if out, err := b.verb("show", nil, "net"); err != nil || len(rows(t, out)) != 7 {
		t.Errorf("a network: %v, %v", out, err)
	}
	if out, err = b.verb("show", nil, "10.1.0.6"); err != nil || len(rows(t, out)) != 1 {
		t.Errorf("one address: %v, %v", out, err)
	}
	raw, err := json.Marshal(out)
	if err != nil || !strings.Contains(string(raw), `"identity":"pod:default/kept/eth0"`) {
		t.Errorf("JSON %s, %v", raw, err)
	}
}

func TestReleaseVerb(t *testing.T) {
	b := newNodeBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	a.Life = leasing.NodeLiveness()
	alive, _ := child(t)
	gone, kill := child(t)
	b.add(t, a, inNetns(podRequest(t, "a", "alive"), alive))
	b.add(t, a, inNetns(podRequest(t, "b", "gone"), gone))
	b.add(t, a, podRequest(t, "c", "kept"))
	b.del(t, a, podRequest(t, "c", ""))
	kill()
	b.verbFails(t, `in use by pod "default/alive", container "a"`, "release", nil, "10.1.0.2")
	b.verbFails(t, "10.1.0.9 is neither leased nor reserved", "release", nil, "10.1.0.9")
	b.verbFails(t, "not an IP address", "release", nil, "x")
	b.verbFails(t, "want ADDRESS", "release", nil)
	b.verbText(t, "release", nil, "10.1.0.3")
	b.verbText(t, "release", nil, "2001:db8::4")
	expect(t, b.leases(t), "10.1.0.2 a eth0", "2001:db8::2 a eth0")
	expect(t, b.reservations(t), "pod:default/alive/eth0 [10.1.0.2 2001:db8::2] held")
	b.verbText(t, "release", map[string]string{"force": "true"}, "10.1.0.2")
	expect(t, b.leases(t), "2001:db8::2 a eth0")
	other := podRequest(t, "x", "x")
	other.Network = "other"
	b.add(t, a, other)
	other.ContainerID, other.Network = "y", "net"
	b.add(t, a, withArgs(t, other, "IP=10.1.0.2"))
	b.verbFails(t, `in pools of several networks, "net", "other"`, "release", nil, "10.1.0.2")
	b.verbText(t, "release", map[string]string{"network": "other", "force": "true"}, "10.1.0.2")
}

func TestReserveVerb(t *testing.T) {
	b := newNodeBed(t)
	const ipam = twoSets + `, "sticky": {"mode": "strict"}`
	a := b.handlerFor(t, ipam)
	conf := map[string]string{"conf": b.confOf(t, ipam), "for": "default/web-0"}
	b.verbFails(t, "cannot choose a pool: give --network", "reserve", map[string]string{}, "10.1.0.9")
	b.verbFails(t, "10.1.0.1 is the gateway of 10.1.0.0/24", "reserve", conf, "10.1.0.1")
	b.verbFails(t, "it is the broadcast address of 10.1.0.0/24", "reserve", conf, "10.1.0.255")
	b.verbFails(t, `"soon" is not a time`, "reserve", map[string]string{"until": "soon"}, "10.1.0.9")
	b.verbFails(t, `identity "x:y"`, "reserve", map[string]string{"for": "x:y"}, "10.1.0.9")
	if got := b.verbText(t, "reserve", conf, "10.1.0.9", "2001:db8::9"); got != `reserved 10.1.0.9 and 2001:db8::9 of network "net" for "pod:default/web-0/eth0" for ever` {
		t.Error(got)
	}
	b.pass(1000 * time.Hour)
	expect(t, b.add(t, a, podRequest(t, "a", "web-0")), "10.1.0.9", "2001:db8::9")
	b.del(t, a, podRequest(t, "a", ""))
	b.pass(1000 * time.Hour)
	expect(t, b.add(t, a, podRequest(t, "b", "web-0")), "10.1.0.9", "2001:db8::9")
	b.verbFails(t, `"pod:default/web-0/eth0" has [10.1.0.9 2001:db8::9] now, by container "b"`, "reserve", conf, "10.1.0.10")
	b.verbFails(t, "in use by", "reserve", map[string]string{}, "10.1.0.9")
	if err := b.addFails(t, a, withArgs(t, request1("c"), "IP=10.1.0.9")); !errors.Is(err, store.ErrTaken) {
		t.Error(err)
	}
	b.del(t, a, podRequest(t, "b", ""))
	err := b.addFails(t, a, withArgs(t, request1("c"), "IP=10.1.0.9"))
	if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `CNI_ARGS: IP: address 10.1.0.9: taken: kept for "pod:default/web-0/eth0" for ever`) {
		t.Error(err)
	}
	b.verbFails(t, `kept for "pod:default/web-0/eth0" for ever: use --force`, "reserve", map[string]string{"for": "name:db"}, "10.1.0.9")
	b.verbText(t, "reserve", map[string]string{"for": "name:db", "force": "true", "until": "10m"}, "10.1.0.9")
	expect(t, b.reservations(t), "name:db/eth0 [10.1.0.9] kept", "pod:default/web-0/eth0 [2001:db8::9] cooling")
	b.pass(10 * time.Minute)
	if got := b.verbText(t, "gc", nil); !strings.HasSuffix(got, "forgot 2 reservations that had expired") {
		t.Error(got)
	}
	expect(t, b.reservations(t))
}

// TestGCVerb: the verb gc does not release addresses of living containers, whatever the state of the
// reservation is.
func TestGCVerb(t *testing.T) {
	b := newNodeBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {}`)
	a.Life = leasing.NodeLiveness()
	alive, _ := child(t)
	gone, kill := child(t)
	b.add(t, a, inNetns(podRequest(t, "a", "web-0"), alive))
	b.add(t, a, inNetns(podRequest(t, "b", "web-1"), gone))
	kill()
	b.pass(1000 * time.Hour)
	if got := b.verbText(t, "gc", nil); got != "freed 2 addresses of containers that are gone, forgot 0 reservations that had expired" {
		t.Error(got)
	}
	expect(t, b.leases(t), "10.1.0.2 a eth0", "2001:db8::2 a eth0")
	expect(t, b.reservations(t), "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] held", "pod:default/web-1/eth0 [10.1.0.3 2001:db8::3] kept")
}

func TestTransferVerbs(t *testing.T) {
	b := newNodeBed(t)
	a := b.handlerFor(t, twoSets+`, "sticky": {"ttl": "never"}`)
	b.add(t, a, podRequest(t, "a", "web-0"))
	b.add(t, a, podRequest(t, "b", "web-1"))
	b.del(t, a, podRequest(t, "b", ""))
	out, err := b.verb("export", nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "export.json")
	if err := os.WriteFile(file, []byte(toJSON(t, out)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newNodeBed(t)
	if _, err := c.verb("import", nil, file); err != nil {
		t.Fatal(err)
	}
	expect(t, c.reservations(t), "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] kept", "pod:default/web-1/eth0 [10.1.0.3 2001:db8::3] kept")
	if _, err := b.verb("import", nil, file); err != nil {
		t.Fatal(err)
	}
	expect(t, b.reservations(t), "pod:default/web-0/eth0 [10.1.0.2 2001:db8::2] held", "pod:default/web-1/eth0 [10.1.0.3 2001:db8::3] kept")
	d := newNodeBed(t)
	da := d.handlerFor(t, twoSets+`, "sticky": {}`)
	da.Plan.DataDir = a.Plan.DataDir
	if err := os.RemoveAll(a.Plan.DataDir); err != nil {
		t.Fatal(err)
	}
	d.add(t, da, podRequest(t, "x", "other"))
	d.del(t, da, podRequest(t, "x", ""))
	d.verbFails(t, `kept for "pod:default/other/eth0" until`, "import", nil, file)
	expect(t, d.reservations(t), "pod:default/other/eth0 [10.1.0.2 2001:db8::2] kept")
	if _, err := d.verb("import", map[string]string{"force": "true"}, file); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.dir, "networks", "net")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "10.1.0.7"), []byte("old\r\neth0"), 0o600)); err != nil {
		t.Fatal(err)
	}
	report, err := c.verb("import", nil, dir)
	if err != nil || len(report.(*leasefiles.ImportReport).Leases) != 1 {
		t.Errorf("%v, %v", report, err)
	}
	for text, want := range map[string]string{"": "cannot decode", "[]": "is a JSON array", "{}": "schema 0", `{"schema": 1, "pools": [{"network": "n", "reservations": [{"identity": "x"}]}]}`: "no address"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c.verbFails(t, want, "import", nil, file)
	}
	c.verbFails(t, "no regular file", "import", nil, os.DevNull)
}

func TestPlanVerb(t *testing.T) {
	b := newNodeBed(t)
	const ipam = `"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "2001:db8::/64"}]], "sticky": {}`
	a := b.handlerFor(t, ipam)
	file := b.confOf(t, ipam)
	plan := func(flags map[string]string) []string {
		t.Helper()
		out, err := b.verb("plan", flags, file)
		if err != nil {
			t.Fatal(err)
		}
		return rows(t, out)
	}
	web := map[string]string{"pod": "web-0", "ifname": "eth0", "container": "p"}
	const next = " the next one without a known earlier owner"
	expect(t, plan(web), "10.1.0.2/29 10.1.0.1"+next, "2001:db8::2/64 2001:db8::1"+next)
	for i, pod := range []string{"web-0", "web-1", "web-2", "web-3", "web-4"} {
		b.add(t, a, podRequest(t, pod, pod))
		if i < 2 {
			b.del(t, a, podRequest(t, pod, ""))
		}
	}
	const own = `kept for "pod:default/web-0/eth0"`
	expect(t, plan(web), "10.1.0.2/29 10.1.0.1 "+own, "2001:db8::2/64 2001:db8::1 "+own)
	other := map[string]string{"pod": "prod/web-0", "ifname": "eth0", "container": "p"}
	expect(t, plan(other), "10.1.0.2/29 10.1.0.1 nothing else is left; it is "+own, "2001:db8::7/64 2001:db8::1"+next)
	b.pass(time.Hour)
	expect(t, plan(other)[:1], `10.1.0.2/29 10.1.0.1 free for the longest time; "pod:default/web-0/eth0" had it`)
	other["ip"] = "10.1.0.3"
	expect(t, plan(other)[:1], "10.1.0.3/29 10.1.0.1 asked for by CNI_ARGS: IP")
	other["ip"] = "10.1.0.4"
	b.verbFails(t, `address 10.1.0.4: taken by "eth0" of container "web-2"`, "plan", other, file)
	b.verbFails(t, "want FILE", "plan", other)
	conf, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fused := strings.Replace(string(conf), `"plugins": [`, `"plugins": [{"type": "chain", "plugins": [`, 1) + "]}"
	if err := os.WriteFile(file, []byte(fused), 0o600); err != nil {
		t.Fatal(err)
	}
	b.verbFails(t, `address 10.1.0.4: taken by "eth0" of container "web-2"`, "plan", other, file)
	for text, want := range map[string]string{
		`{"name": "x", "plugins": [{"type": "bridge"}]}`: "has no plugin with ipam.type", "{": "cannot decode",
		`{"name": "x", "ipam": {"type": "host-local"}}`: "ipam.ranges: is required",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b.verbFails(t, want, "plan", other, file)
	}
}

// FuzzTransfer: any file is imported or refused, and imported reservations are usable.
func FuzzTransfer(f *testing.F) {
	f.Add([]byte(`{"schema":1,"pools":[{"network":"net","dataDir":"/x","reservations":[{"identity":"pod:a/b/eth0","addresses":["10.1.0.2","2001:db8::2"],"holder":{"network":"net","containerID":"c","ifname":"eth0"},"ttl":-1}]}]}`))
	f.Add([]byte(`{"schema":1,"pools":[{"network":"n","reservations":[{"identity":"x","addresses":["10.1.0.2"]},{"identity":"y","addresses":["10.1.0.2"],"released":"9999-01-01T00:00:00Z"}]}]}`))
	b := newStickyBed(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr, err := leasing.DecodeTransfer(raw)
		if err != nil {
			if !errors.Is(err, roles.ErrDecode) {
				t.Error(err)
			}
			return
		}
		if _, err := leasing.ImportReservations(context.Background(), b.Host, tr, true); err != nil {
			if !errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrTaken) {
				t.Error(err)
			}
			return
		}
		out, err := leasing.ExportReservations(context.Background(), b.Host)
		if err != nil {
			t.Error(err)
		}
		if _, err := json.Marshal(out); err != nil {
			t.Error(err)
		}
	})
}
