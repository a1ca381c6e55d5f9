package tuning

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate includes the reference's scenario "duplicate sysctl". All errors
// are reported at once, each with its path.
func TestValidate(t *testing.T) {
	long := `"` + strings.Repeat("1", 5000) + `"`
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"sysctl":{"net.core.somaxconn":"500"},"mac":"02:00:00:00:00:01","promisc":true,"mtu":1400,"txQLen":0,"allmulti":false,"dataDir":"/x"}`},
		{Name: "null is not asked", Conf: `{"sysctl":null,"mtu":0,"promisc":null,"txQLen":null,"args":null}`},
		{Name: "an empty value", Conf: `{"sysctl":{"net.ipv4.ip_local_reserved_ports":""}}`},
		{Name: "key twice", Conf: `{"sysctl":{"net.a.b":"1","net.a.b":"1"}}`, Paths: []string{`sysctl["net.a.b"]`}},
		{Name: "key twice, otherwise written", Conf: `{"sysctl":{"net.a.b":"1","net/a/b":"1"}}`, Paths: []string{`sysctl["net/a/b"]`}},
		{Name: "key twice in args", Conf: `{"args":{"cni":{"sysctl":{"net.a.b":"1","net.a.b":"1"}}}}`, Paths: []string{`args.cni.sysctl["net.a.b"]`}},
		{Name: "args replace", Conf: `{"sysctl":{"net.a.b":"1"},"args":{"cni":{"sysctl":{"net.a.b":"2"}}}}`},
		{Name: "another subsystem", Conf: `{"sysctl":{"kernel.core_pattern":"|/x"}}`, Paths: []string{`sysctl["kernel.core_pattern"]`}},
		{Name: "out of net", Conf: `{"sysctl":{"net/../kernel/core_pattern":"|/x"}}`, Paths: []string{`sysctl["net/../kernel/core_pattern"]`}},
		{Name: "out of net, with dots", Conf: `{"sysctl":{"net.//.kernel.core_pattern":"|/x"}}`, Paths: []string{`sysctl["net.//.kernel.core_pattern"]`}},
		{Name: "net itself", Conf: `{"sysctl":{"net":"1","net.":"1","":"1"}}`, Paths: []string{`sysctl["net"]`, `sysctl["net."]`, `sysctl[""]`}},
		{Name: "absolute", Conf: `{"sysctl":{"/proc/sys/net/core/somaxconn":"1"}}`, Paths: []string{`sysctl["/proc/sys/net/core/somaxconn"]`}},
		{Name: "values of other types", Conf: `{"sysctl":{"net.a.a":1,"net.a.b":true,"net.a.c":null,"net.a.d":{},"net.a.e":[]}}`, Paths: []string{
			`sysctl["net.a.a"]`, `sysctl["net.a.b"]`, `sysctl["net.a.c"]`, `sysctl["net.a.d"]`, `sysctl["net.a.e"]`,
		}},
		{Name: "two lines", Conf: `{"sysctl":{"net.a.a":"1\n2","net.a.b":"1\u0000","net.a.c":` + long + `}}`, Paths: []string{`sysctl["net.a.a"]`, `sysctl["net.a.b"]`, `sysctl["net.a.c"]`}},
		{Name: "no object", Conf: `{"sysctl":["net.a.b"],"mtu":-1}`, Paths: []string{"sysctl", "mtu"}},
		{Name: "macs", Conf: `{"mac":"x","runtimeConfig":{"mac":"01:00:00:00:00:01"},"args":{"cni":{"mac":"00:00:00:00:00:00"}}}`, Paths: []string{"mac", "runtimeConfig.mac", "args.cni.mac"}},
		{Name: "mtus", Conf: `{"mtu":67,"args":{"cni":{"mtu":65536}}}`, Paths: []string{"mtu", "args.cni.mtu"}},
		{Name: "queues", Conf: `{"txQLen":-1,"args":{"cni":{"txQLen":4294967296}}}`, Paths: []string{"txQLen", "args.cni.txQLen"}},
		{Name: "wrong type", Conf: `{"promisc":"yes"}`, Paths: []string{"promisc"}},
	})
}

// TestWants: without one of its own keys the role changes nothing.
func TestWants(t *testing.T) {
	for conf, want := range map[string]bool{
		`{}`: false, `{"dataDir":"/x","capabilities":{"mac":true}}`: false, `{"mtu":0,"sysctl":{},"args":{"cni":{"mac":""}}}`: false,
		`{"promisc":false}`: true, `{"txQLen":0}`: true, `{"runtimeConfig":{"mac":"02:00:00:00:00:01"}}`: true,
		`{"sysctl":{"net.a.b":""}}`: true, `{"args":{"cni":{"sysctl":{"net.a.b":"1"}}}}`: true, `{"args":{"cni":{"allmulti":true}}}`: true,
	} {
		r, err := rolestest.Read[*role](Role(), []byte(conf))
		if err != nil {
			t.Fatal(err)
		}
		if r.Wants() != want {
			t.Errorf("%s: wants %v", conf, !want)
		}
	}
	r, _ := rolestest.Read[*role](Role(), []byte(`{}`))
	args, err := roles.ParseArgs("MAC=02:00:00:00:00:01")
	if err != nil || !r.WantedByArgs(args) {
		t.Errorf("CNI_ARGS request no change, %v", err)
	}
}

// TestAllowed uses allowlists of the node's administrator.
func TestAllowed(t *testing.T) {
	const conf = `{"sysctl":{"net.core.somaxconn":"1","net.ipv4.conf.IFNAME.arp_filter":"1"},"args":{"cni":{"sysctl":{"net/core/somaxconn":"2"}}}}`
	r, err := rolestest.Read[*role](Role(), []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	const all = `sysctl["net.core.somaxconn"] sysctl["net.ipv4.conf.IFNAME.arp_filter"] args.cni.sysctl["net/core/somaxconn"]`
	for _, c := range []struct{ name, list, want string }{
		{"nothing", "", all},
		{"blank lines", "\n  \n\t\n", all},
		{"anything", ".", ""},
		{"not anchored", "  somaxconn  \n", `sysctl["net.ipv4.conf.IFNAME.arp_filter"]`},
		{"by the name that was written", `^net\.core\.somaxconn$` + "\n" + `^net\.ipv4\.conf\.IFNAME\.[a-z_]+$`, `args.cni.sysctl["net/core/somaxconn"]`},
		{"no expression", "somaxconn\n(", allowlistFile + ", line 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := r.conf.checkAllowed(c.list)
			if (err == nil) != (c.want == "") {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if err == nil {
				return
			}
			var paths []string
			for _, line := range strings.Split(err.Error(), "\n") {
				path, _, _ := strings.Cut(line, ": ")
				paths = append(paths, path)
			}
			if have := strings.Join(paths, " "); have != c.want {
				t.Errorf("errors at %q, want %q", have, c.want)
			}
		})
	}
}

// TestReadAllowlist: a missing file allows everything. A path that is not a
// regular file is an error.
func TestReadAllowlist(t *testing.T) {
	dir := t.TempDir()
	if _, found, err := readAllowlist(filepath.Join(dir, "none")); found || err != nil {
		t.Errorf("no file: %v, %v", found, err)
	}
	if _, _, err := readAllowlist(dir); err == nil {
		t.Error("a directory is accepted as a list")
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, maxAllowlist+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readAllowlist(big); err == nil {
		t.Error("an endless list is accepted")
	}
}

// FuzzSettings decodes sysctl objects, encodes them and decodes the result.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `[]`, `"x"`, `5`, `{"net.a":"1"}`, `{"net.a":"1","net.a":2}`, `{"a":{"b":[null]}}`, `{"\ud800":"\u0000"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Settings
		if json.Unmarshal(b, &s) != nil {
			return
		}
		var faults roles.Faults
		s.validate(&faults, "sysctl")
		for _, one := range s {
			if key := one.key("eth0.1"); strings.HasPrefix(key, "/") && faults.Err() == nil {
				t.Fatalf("%q is decoded as %q", one.Name, key)
			}
		}
		if faults.Err() != nil {
			return
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again Settings
		if err := json.Unmarshal(raw, &again); err != nil || len(again) != len(s) {
			t.Fatalf("%s became %s: %v", b, raw, err)
		}
	})
}
