package clusterrange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// TestSuite runs the role as a process, as a third-party interface plugin does.
func TestSuite(t *testing.T) {
	tamper := []rolestest.Tamper{{Name: "lease gone", Do: dropLeases}}
	rolestest.Suite{
		Table: tabletest.Of(Role()), Type: "range",
		Confs: []rolestest.Conf{
			{Name: "one", Tamper: tamper, JSON: `{"name": "net", "type": "macvlan", "ipam": {"type": "range", "range": "10.1.2.0/24"}}`},
			{Name: "dual stack", Tamper: tamper, JSON: `{"name": "net", "type": "macvlan", "ipam": {"type": "range", "gateway": "10.1.2.1",
				"ipRanges": [{"range": "10.1.2.0/24", "exclude": ["10.1.2.2/31"]}, {"range": "2001:db8::/64"}], "routes": [{"dst": "0.0.0.0/0"}]}}`},
		},
	}.Run(t)
}

func dropLeases(t *testing.T, e *rolestest.Env, _ *netopstest.NS, _ *roles.Result) {
	t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	err = h.Store.Update(context.Background(), func(tx *store.Tx) error {
		_, err := tx.DeleteLeases(store.Key{Network: "net", ContainerID: "c1", IfName: "eth0"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConf: whereabouts' keys and defaults give the addresses that a container can get.
func TestConf(t *testing.T) {
	for _, c := range []struct{ ipam, free, pool string }{
		{`"range": "192.168.2.0/24"`, "192.168.2.1-192.168.2.254", ""},
		{`"range": "192.168.2.225/28"`, "192.168.2.225-192.168.2.238", ""},
		{`"range": "192.168.2.10-192.168.2.12/24"`, "192.168.2.10-192.168.2.12", ""},
		{`"range": "192.168.2.0/24", "range_start": "192.168.2.0", "range_end": "192.168.2.9", "gateway": "192.168.2.1"`, "192.168.2.2-192.168.2.9", ""},
		{`"range": "192.168.2.0/29", "exclude": ["192.168.2.3/31", "192.168.2.6"]`, "192.168.2.1-192.168.2.1 192.168.2.4-192.168.2.5", ""},
		{`"range": "fd00::/126", "gateway": "192.168.2.1"`, "fd00::1-fd00::3", ""},
		{`"range": "10.1.0.0/31", "enable_overlapping_ranges": false`, "10.1.0.0-10.1.0.1", "net"},
		{`"range": "10.1.0.0/31", "network_name": "lan"`, "10.1.0.0-10.1.0.1", "lan"},
		{`"range": "10.1.0.0/31", "ipRanges": [{"range": "fd00::8/127"}]`, "10.1.0.0-10.1.0.1 | fd00::8-fd00::9", ""},
	} {
		a := handlerFor(t, "net", c.ipam)
		var sets []string
		for _, s := range a.Plan.Sets {
			var free []string
			for _, i := range s[0].Free {
				free = append(free, i.String())
			}
			sets = append(sets, strings.Join(free, " "))
		}
		if got := strings.Join(sets, " | "); got != c.free || a.pool != c.pool {
			t.Errorf("%s: %s in pool %q", c.ipam, got, a.pool)
		}
	}
}

// TestKeys: lint knows each key that whereabouts v0.8.0 reads (IPAMConfig.UnmarshalJSON).
func TestKeys(t *testing.T) {
	known := map[string]bool{}
	for f := range reflect.TypeFor[IPAM]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = true
	}
	for _, key := range strings.Fields(`type routes datastore addresses ipRanges exclude dns range range_start range_end gateway etcd_host etcd_username
		etcd_password etcd_key_file etcd_cert_file etcd_ca_cert_file leader_lease_duration leader_renew_deadline leader_retry_period log_file log_level
		reconciler_cron_expression enable_overlapping_ranges sleep_for_race kubernetes configuration_path network_name`) {
		if !known[key] {
			t.Errorf("the key %s of whereabouts is not known", key)
		}
	}
	for _, path := range ignored() {
		if key, ok := strings.CutPrefix(path, "ipam."); !ok || !known[key] {
			t.Errorf("%s is ignored, and is no key", path)
		}
	}
}

// TestDemands: the demands of a plugin's configuration, a list, and a list with role chain. Deeper plugins are not read, so that a
// deep file costs no more than its size.
func TestDemands(t *testing.T) {
	const plugin = `"type": "macvlan", "ipam": {"type": "range", "range": "10.1.0.0/24"}`
	for file, want := range map[string]int{
		`{"name": "n", ` + plugin + `}`:                                                1,
		`{"name": "n", "plugins": [{"type": "tuning"}, {` + plugin + `}]}`:             1,
		`{"name": "n", "plugins": [{"type": "chain", "plugins": [{` + plugin + `}]}]}`: 1,
		`{"name": "n", "plugins": [{"plugins": [{"plugins": [{` + plugin + `}]}]}]}`:   0,
		`{"plugins": [{` + plugin + `}]}`:                                              0,
		``:                                                                             0, `[]`: 0, `{"name": "n", "plugins": [1, {"ipam": 1}]}`: 0,
	} {
		if got := Demands([]byte(file)); len(got) != want {
			t.Errorf("%s: %v", file, got)
		}
	}
}

// TestRefused: every fault names its key.
func TestRefused(t *testing.T) {
	for ipam, path := range map[string]string{
		``: "ipam.range", `"range": "10.1.0.0"`: "ipam.range", `"range": "::ffff:10.1.0.0/120"`: "ipam.range", `"range": "127.0.0.0/8"`: "ipam.range",
		`"range": "10.1.0.5-10.1.0.9"`: "ipam.range", `"range": "10.1.0.5-10.1.0.9/24", "range_end": "10.1.0.7"`: "ipam.range",
		`"range": "10.1.0.9-10.1.0.5/24"`: "ipam.range_end", `"range": "10.1.0.0/24", "range_start": "10.2.0.1"`: "ipam.range_start",
		`"range": "10.1.0.0/24", "range_end": "x"`: "ipam.range_end", `"range": "10.1.0.0/24", "exclude": ["x/24"]`: "ipam.exclude[0]",
		`"range": "10.1.0.0/24", "exclude": ["10.0.0.0/8"]`: "ipam.range", `"range": "10.1.0.0/24", "gateway": "x"`: "ipam.gateway",
		`"range": "10.1.0.0/24", "addresses": [{"address": "10.1.0.2/24"}]`: "ipam.addresses", `"ipRanges": [{"range": "10.1.0.0/24"}, {}]`: "ipam.ipRanges[1].range",
		`"range": "10.1.0.0/24", "network_name": "a\u0000"`: "ipam.network_name",
		`"range": "10.1.0.0/24", "sticky": {"key": "none"}`: "ipam.sticky.key", `"range": "10.1.0.0/24", "sticky": {"ttl": "x"}`: "ipam.sticky.ttl",
	} {
		_, err := newHandler(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "range", %s}}`, strings.TrimPrefix(ipam+`, "routes": []`, ", ")))
		var fault *roles.ConfError
		if !errors.As(err, &fault) || fault.Path != path {
			t.Errorf("%s: %v", ipam, err)
		}
	}
	_, err := newHandler([]byte(`{"cniVersion": "0.2.0", "name": "net", "ipam": {"range": "10.1.0.0/24", "ipRanges": [{"range": "10.2.0.0/24"}]}}`))
	if !errors.Is(err, roles.ErrConf) {
		t.Errorf("two IPv4 addresses before 0.3.0: %v", err)
	}
}

// TestCommands: the plan of a network whose addresses the agent chooses is refused, and an answer that a repetition does not
// change is no reason to try again.
func TestCommands(t *testing.T) {
	h := hostAt(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "kept.conf")
	if err := os.WriteFile(file, []byte(`{"cniVersion": "1.1.0", "name": "kept", "type": "macvlan", "ipam": {"type": "range", "range": "10.1.2.0/24", "sticky": {}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	keep(t, h, clusterDir(t), "a")
	run := func(name string, args ...string) error {
		r := Role()
		_, err := r.Verb(name).Run(t.Context(), h, map[string]string{"ifname": "eth0"}, args)
		return err
	}
	if err := run("range plan", file); !errors.Is(err, roles.ErrUnplanned) {
		t.Errorf("plan: %v", err)
	}
	if err := run("range release", "kept", "pod:default/web-0/net1"); err == nil || errors.Is(err, roles.ErrTryAgain) || !strings.Contains(err.Error(), "there is no reservation") {
		t.Errorf("release: %v", err)
	}
}

// TestAgent: ADD and STATUS get a block of the agent, DEL and GC release, CHECK compares, and without an agent
// ADD names it.
func TestAgent(t *testing.T) {
	h, ctx := hostAt(t, t.TempDir()), t.Context()
	a := handlerFor(t, "net", `"range": "10.1.2.0/24", "ipRanges": [{"range": "fd00::/64"}], "gateway": "10.1.2.1", "dns": {"nameservers": ["10.1.2.53"]}`)
	if _, err := a.Add(ctx, h, request("net", "c0")); !errors.Is(err, roles.ErrTryAgain) || !strings.Contains(err.Error(), "cnibox agent") {
		t.Fatalf("without an agent: %v", err)
	}
	if err := a.Status(ctx, h, request("net", "")); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("STATUS without an agent: %v", err)
	}
	if _, err := a.Preview(ctx, h, request("net", "c0")); !errors.Is(err, roles.ErrUnplanned) {
		t.Errorf("plan without a block: %v", err)
	}
	stop := keep(t, h, clusterDir(t), "a")
	if err := a.Status(ctx, h, request("net", "")); err != nil {
		t.Fatal(err)
	}
	stop() // the blocks stay
	next, err := a.Preview(ctx, h, request("net", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Add(ctx, h, request("net", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	if !next.IPs[0].Address.IP.Equal(r.IPs[0].Address.IP) {
		t.Errorf("planned %v", next.IPs)
	}
	if len(r.IPs) != 2 || r.IPs[0].Gateway.String() != "10.1.2.1" || r.IPs[1].Gateway != nil || r.DNS.Nameservers[0] != "10.1.2.53" {
		t.Errorf("%+v", r)
	}
	check := request("net", "c1")
	check.PrevResult = r
	if err := a.Check(ctx, h, check); err != nil {
		t.Error(err)
	}
	raw, err := json.Marshal(must(t)(commands()[1].Run(ctx, h, nil, nil)))
	if err != nil || !strings.Contains(string(raw), `"used":1`) {
		t.Errorf("%s, %v", raw, err)
	}
	if err := a.Del(ctx, h, request("net", "c1")); err != nil {
		t.Error(err)
	}
	if err := a.Check(ctx, h, check); !errors.Is(err, roles.ErrCheck) {
		t.Errorf("after DEL: %v", err)
	}
	if _, err := a.Add(ctx, h, request("net", "c2")); err != nil {
		t.Fatal(err)
	}
	if err := a.GC(ctx, h, request("net", "")); err != nil {
		t.Error(err)
	}
	if err := h.Store.View(ctx, func(tx *store.Tx) error {
		left, err := tx.LeasesOf(request("net", "c2").Key())
		if len(left) > 0 {
			t.Errorf("GC left %v", left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestVain: if the agent counts addresses as free that ADD does not give out, ADD ends after two answers. Here ADD's
// clock is after the validity of the agent's blocks.
func TestVain(t *testing.T) {
	h := hostAt(t, t.TempDir())
	keep(t, h, clusterDir(t), "a")
	calls := 0
	later := *h
	later.Now = func() time.Time { calls++; return time.Now().Add(time.Hour) }
	a := handlerFor(t, "net", `"range": "10.1.2.0/24"`)
	if _, err := a.Add(t.Context(), &later, request("net", "c")); !errors.Is(err, roles.ErrTryAgain) || calls > 50 {
		t.Errorf("%v, after %d readings of the clock", err, calls)
	}
}

func must(t *testing.T) func(any, error) any {
	return func(v any, err error) any {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestOverlap: networks whose ranges overlap give each address once on a node, unless a network has a pool of
// its own. A requested address must be of a block of this node.
func TestOverlap(t *testing.T) {
	h, ctx := hostAt(t, t.TempDir()), t.Context()
	keep(t, h, clusterDir(t), "a")
	one, two := handlerFor(t, "one", `"range": "10.1.2.0/28"`), handlerFor(t, "two", `"range": "10.1.2.0/27"`)
	own := handlerFor(t, "own", `"range": "10.1.2.0/28", "enable_overlapping_ranges": false`)
	seen := map[netip.Addr]int{}
	for i := range 14 {
		for _, a := range []*handler{one, two, own} {
			r, err := a.Add(ctx, h, request(a.network, fmt.Sprint("c", i)))
			if err == nil {
				seen[addressOf(t, r)]++
			} else if a != one || !errors.Is(err, roles.ErrTryAgain) { // the other network has many of its addresses
				t.Fatal(err)
			}
		}
	}
	for a, n := range seen {
		if n > 2 || n == 2 && a.Compare(netip.MustParseAddr("10.1.2.15")) > 0 {
			t.Errorf("%s was given %d times", a, n)
		}
	}
	for args, want := range map[string]error{"IP=10.1.2.200": roles.ErrEnv, "IP=10.1.2.3": store.ErrTaken} {
		req := request("two", "asks")
		req.Args, _ = roles.ParseArgs(args)
		if _, err := two.Add(ctx, h, req); !errors.Is(err, want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// BenchmarkAdd is ADD and DEL in this process from a block that the node has.
func BenchmarkAdd(b *testing.B) {
	h := hostAt(b, b.TempDir())
	a := handlerFor(b, "net", `"range": "10.1.0.0/16"`)
	keep(b, h, clusterDir(b), "a")
	for b.Loop() {
		if _, err := a.Add(b.Context(), h, request("net", "c1")); err != nil {
			b.Fatal(err)
		}
		if err := a.Del(b.Context(), h, request("net", "c1")); err != nil {
			b.Fatal(err)
		}
	}
}
