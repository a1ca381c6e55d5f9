package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// netConf returns a network configuration with the given "ipam" object.
func netConf(ipam string) string {
	return `{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ` + ipam + `}`
}

func texts(in []leasing.Interval) []string {
	var out []string
	for _, i := range in {
		out = append(out, i.String())
	}
	return out
}

// printSets prints the parsed range sets, one line for each range.
func printSets(p *leasing.Plan) string {
	var out []string
	for i, s := range p.Sets {
		for _, r := range s {
			gw := "none"
			if r.Gateway.IsValid() {
				gw = r.Gateway.String()
			}
			out = append(out, fmt.Sprintf("%d: %s gateway %s free %s", i, r.Subnet, gw, strings.Join(texts(r.Free), " ")))
		}
	}
	return strings.Join(out, "\n")
}

func TestConf(t *testing.T) {
	cases := map[string]struct{ conf, want string }{
		"defaults v4": {
			netConf(`{"ranges": [[{"subnet": "10.1.2.0/24"}]]}`),
			"0: 10.1.2.0/24 gateway 10.1.2.1 free 10.1.2.2-10.1.2.254",
		},
		"defaults v6": {
			netConf(`{"ranges": [[{"subnet": "2001:db8:1::/120"}]]}`),
			"0: 2001:db8:1::/120 gateway 2001:db8:1::1 free 2001:db8:1::2-2001:db8:1::ff",
		},
		"old form": {
			netConf(`{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.20", "gateway": "10.1.2.30"}`),
			"0: 10.1.2.0/24 gateway 10.1.2.30 free 10.1.2.9-10.1.2.20",
		},
		"old form without a subnet is none": {
			netConf(`{"rangeStart": "10.1.2.9", "ranges": [[{"subnet": "10.9.0.0/30"}]]}`),
			"0: 10.9.0.0/30 gateway 10.9.0.1 free 10.9.0.2-10.9.0.2",
		},
		"old, new and runtime, in the reference's order": {
			`{"cniVersion": "1.1.0", "name": "net", "ipam": {"subnet": "10.1.2.0/30", "ranges": [[{"subnet": "2001:db8::/126"}]]},
			  "runtimeConfig": {"ipRanges": [[{"subnet": "12.1.3.0/30"}], [{"subnet": "2001:db8:2::/126"}]]}}`,
			"0: 12.1.3.0/30 gateway 12.1.3.1 free 12.1.3.2-12.1.3.2\n" +
				"1: 2001:db8:2::/126 gateway 2001:db8:2::1 free 2001:db8:2::2-2001:db8:2::3\n" +
				"2: 10.1.2.0/30 gateway 10.1.2.1 free 10.1.2.2-10.1.2.2\n" +
				"3: 2001:db8::/126 gateway 2001:db8::1 free 2001:db8::2-2001:db8::3",
		},
		"several ranges of one set": {
			netConf(`{"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.1.4.0/30"}]]}`),
			"0: 10.1.0.0/30 gateway 10.1.0.1 free 10.1.0.2-10.1.0.2\n0: 10.1.4.0/30 gateway 10.1.4.1 free 10.1.4.2-10.1.4.2",
		},
		"one subnet in two ranges": {
			netConf(`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3"}, {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.250"}]]}`),
			"0: 10.1.0.0/24 gateway 10.1.0.1 free 10.1.0.2-10.1.0.3\n0: 10.1.0.0/24 gateway 10.1.0.1 free 10.1.0.250-10.1.0.254",
		},
		"a link-local gateway": {
			netConf(`{"subnet": "2001:db8::/126", "gateway": "fe80::1"}`),
			"0: 2001:db8::/126 gateway fe80::1 free 2001:db8::1-2001:db8::3",
		},
		"a link-local gateway of IPv4, as for ptp's hostAddressing": {
			netConf(`{"subnet": "10.1.2.0/30", "gateway": "169.254.1.1"}`),
			"0: 10.1.2.0/30 gateway 169.254.1.1 free 10.1.2.1-10.1.2.2",
		},
		"/31":  {netConf(`{"subnet": "10.1.0.0/31"}`), "0: 10.1.0.0/31 gateway 10.1.0.0 free 10.1.0.1-10.1.0.1"},
		"/127": {netConf(`{"subnet": "2001:db8::/127"}`), "0: 2001:db8::/127 gateway 2001:db8:: free 2001:db8::1-2001:db8::1"},
		"/32":  {netConf(`{"subnet": "10.1.0.5/32"}`), "0: 10.1.0.5/32 gateway none free 10.1.0.5-10.1.0.5"},
		"/128": {netConf(`{"subnet": "2001:db8::5/128"}`), "0: 2001:db8::5/128 gateway none free 2001:db8::5-2001:db8::5"},
		"/31, gateway elsewhere": {
			netConf(`{"subnet": "10.1.0.0/31", "gateway": "10.9.0.1"}`),
			"0: 10.1.0.0/31 gateway 10.9.0.1 free 10.1.0.0-10.1.0.1",
		},
		"never the network nor the broadcast address": {
			netConf(`{"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.7"}`),
			"0: 10.1.0.0/29 gateway 10.1.0.1 free 10.1.0.2-10.1.0.6",
		},
		"exclude": {
			netConf(`{"exclude": ["10.1.0.4/31", "10.1.0.9", "2001:db8::/32"], "ranges": [[{"subnet": "10.1.0.0/28", "exclude": ["10.1.0.12/30"]}]]}`),
			"0: 10.1.0.0/28 gateway 10.1.0.1 free 10.1.0.2-10.1.0.3 10.1.0.6-10.1.0.8 10.1.0.10-10.1.0.11",
		},
		"exclude with host bits": {
			netConf(`{"exclude": ["10.1.0.5/30"], "subnet": "10.1.0.0/29"}`),
			"0: 10.1.0.0/29 gateway 10.1.0.1 free 10.1.0.2-10.1.0.3",
		},
		"an IPv4-mapped address is IPv4": {
			netConf(`{"subnet": "10.1.0.0/29", "rangeStart": "::ffff:10.1.0.4"}`),
			"0: 10.1.0.0/29 gateway 10.1.0.1 free 10.1.0.4-10.1.0.6",
		},
		"ranges only from the runtime": {
			`{"cniVersion": "1.1.0", "name": "net", "capabilities": {"ipRanges": true}, "ipam": {}}`, "",
		},
		"one of each family in 0.2.0": {
			`{"cniVersion": "0.2.0", "name": "net", "ipam": {"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "2001:db8::/126"}]]}}`,
			"0: 10.1.0.0/30 gateway 10.1.0.1 free 10.1.0.2-10.1.0.2\n1: 2001:db8::/126 gateway 2001:db8::1 free 2001:db8::2-2001:db8::3",
		},
		"unknown keys": {netConf(`{"subnet": "10.1.0.0/30", "colour": 7}`), "0: 10.1.0.0/30 gateway 10.1.0.1 free 10.1.0.2-10.1.0.2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, err := newHandler([]byte(c.conf))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, printSets(a.Plan)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConfDefaults(t *testing.T) {
	c, err := decode([]byte(netConf(`{"subnet": "10.1.0.0/30"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if c.IPAM.DataDir != "/var/lib/cni/networks" {
		t.Errorf("dataDir is %q", c.IPAM.DataDir)
	}
	a, err := newHandler([]byte(netConf(`{"subnet": "10.1.0.0/30", "dataDir": "/x/../y/"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.ID("net"); got != (store.PoolID{DataDir: "/y", Network: "net"}) {
		t.Errorf("pool is %v", got)
	}
}

const ofYourOwn = ": use a network of your own, such as 10.1.0.0/16 or fd00:1::/64"

// TestConfFaults: all faults are reported at once, each with its path.
func TestConfFaults(t *testing.T) {
	cases := map[string]struct {
		conf string
		want []string
	}{
		"no ipam":    {`{"cniVersion": "1.1.0", "name": "net"}`, []string{"ipam: is required"}},
		"null ipam":  {netConf(`null`), []string{"ipam: is required"}},
		"no ranges":  {netConf(`{}`), []string{`ipam.ranges: is required: a list of range sets, such as [[{"subnet": "10.1.0.0/16"}]]`}},
		"empty set":  {netConf(`{"ranges": [[]]}`), []string{"ipam.ranges[0]: is an empty range set"}},
		"no subnet":  {netConf(`{"ranges": [[{}]]}`), []string{"ipam.ranges[0][0].subnet: is required, a CIDR such as 10.1.0.0/16"}},
		"null range": {netConf(`{"ranges": [[null]]}`), []string{"ipam.ranges[0][0].subnet: is required, a CIDR such as 10.1.0.0/16"}},
		"bad subnet": {netConf(`{"ranges": [[{"subnet": "10.1.0.0"}]]}`), []string{`ipam.ranges[0][0].subnet: "10.1.0.0" is not a CIDR, such as 10.1.0.0/16`}},
		"host bits":  {netConf(`{"subnet": "10.1.2.3/24"}`), []string{"ipam.subnet: 10.1.2.3/24 has host bits set: the network is 10.1.2.0/24"}},
		"mapped":     {netConf(`{"subnet": "::ffff:10.0.0.0/112"}`), []string{`ipam.subnet: "::ffff:10.0.0.0/112" is not a CIDR, such as 10.1.0.0/16`}},
		"no hosts' networks": {
			netConf(`{"ranges": [[{"subnet": "127.0.0.0/8"}], [{"subnet": "224.1.0.0/16"}], [{"subnet": "0.0.0.0/0"}], [{"subnet": "::/0"}], [{"subnet": "::1/128"}], [{"subnet": "ff02::/64"}]]}`),
			[]string{
				"ipam.ranges[0][0].subnet: 127.0.0.0/8 is in 127.0.0.0/8 (loopback), which no container can have" + ofYourOwn,
				"ipam.ranges[1][0].subnet: 224.1.0.0/16 is in 224.0.0.0/4 (multicast), which no container can have" + ofYourOwn,
				`ipam.ranges[2][0].subnet: 0.0.0.0/0 contains 0.0.0.0/8 ("this network"), which no container can have` + ofYourOwn,
				"ipam.ranges[3][0].subnet: ::/0 contains ::/128 (the unspecified address), which no container can have" + ofYourOwn,
				"ipam.ranges[4][0].subnet: ::1/128 is in ::1/128 (loopback), which no container can have" + ofYourOwn,
				"ipam.ranges[5][0].subnet: ff02::/64 is in ff00::/8 (multicast), which no container can have" + ofYourOwn,
			},
		},
		"start before":       {netConf(`{"subnet": "10.1.2.0/24", "rangeStart": "10.1.1.0"}`), []string{"ipam.rangeStart: 10.1.1.0 is not in 10.1.2.0/24"}},
		"end after":          {netConf(`{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.0"}`), []string{"ipam.rangeEnd: 10.1.3.0 is not in 10.1.2.0/24"}},
		"end family":         {netConf(`{"subnet": "10.1.2.0/24", "rangeEnd": "2001:db8::1"}`), []string{"ipam.rangeEnd: 2001:db8::1 is not in 10.1.2.0/24"}},
		"gateway":            {netConf(`{"ranges": [[{"subnet": "10.1.0.0/30", "gateway": "10.1.4.2"}]]}`), []string{"ipam.ranges[0][0].gateway: 10.1.4.2 is not in 10.1.0.0/30"}},
		"link-local gateway": {netConf(`{"subnet": "10.1.2.0/24", "gateway": "fe80::1"}`), []string{"ipam.gateway: fe80::1 is not in 10.1.2.0/24"}},
		"gateway family":     {netConf(`{"subnet": "10.1.2.0/31", "gateway": "fd00::1"}`), []string{"ipam.gateway: fd00::1 is not in 10.1.2.0/31"}},
		"backwards":          {netConf(`{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8"}`), []string{"ipam.rangeEnd: 10.1.2.8 is before rangeStart 10.1.2.9"}},
		"bad addresses": {
			netConf(`{"subnet": "10.1.2.0/24", "rangeStart": "a", "rangeEnd": "10.1.2.300", "gateway": "fe80::1%eth0"}`),
			[]string{`ipam.rangeStart: "a" is not an IP address`, `ipam.rangeEnd: "10.1.2.300" is not an IP address`, `ipam.gateway: "fe80::1%eth0" is not an IP address`},
		},
		"mixed families": {
			netConf(`{"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "2001:db8::/64"}]]}`),
			[]string{"ipam.ranges[0][1].subnet: 2001:db8::/64 is of another address family than 10.1.0.0/24: move it to a separate range set"},
		},
		"overlap in a set": {
			netConf(`{"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.128/25"}]]}`),
			[]string{"ipam.ranges[0][1]: 10.1.0.129-10.1.0.254 overlaps with 10.1.0.1-10.1.0.254 of ipam.ranges[0][0]"},
		},
		"overlap between sets": {
			`{"cniVersion": "1.1.0", "name": "net", "ipam": {"subnet": "10.1.0.0/16"}, "runtimeConfig": {"ipRanges": [[{"subnet": "10.1.7.0/24"}]]}}`,
			[]string{"ipam: 10.1.0.1-10.1.255.254 overlaps with 10.1.7.1-10.1.7.254 of runtimeConfig.ipRanges[0][0]"},
		},
		"two of a family in 0.2.0": {
			`{"cniVersion": "0.2.0", "name": "net", "ipam": {"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "10.2.0.0/30"}]]}}`,
			[]string{"ipam.ranges[1]: cniVersion 0.2.0 allows one address of each family: use 0.3.0 or newer"},
		},
		"two of a family without a version": {
			`{"name": "net", "ipam": {"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "10.2.0.0/30"}]]}}`,
			[]string{"ipam.ranges[1]: cniVersion 0.1.0 allows one address of each family: use 0.3.0 or newer"},
		},
		"nothing left": {
			netConf(`{"ranges": [[{"subnet": "10.1.0.0/30", "exclude": ["10.1.0.2"]}]]}`),
			[]string{"ipam.ranges[0]: has no usable address: all are gateways or excluded"},
		},
		"/32 that is its gateway": {
			netConf(`{"subnet": "10.1.0.1/32", "gateway": "10.1.0.1"}`),
			[]string{"ipam.subnet: has no usable address: all are gateways or excluded"},
		},
		"exclude": {
			netConf(`{"exclude": ["x", "10.1.0.0/33"], "ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["10.2.0.0/24", "y", "2001:db8::1"]}]]}`),
			[]string{
				`ipam.exclude[0]: "x" is not an IP address`,
				`ipam.exclude[1]: "10.1.0.0/33" is neither an IP address nor a CIDR`,
				`ipam.ranges[0][0].exclude[1]: "y" is not an IP address`,
				`ipam.ranges[0][0].exclude[0]: 10.2.0.0-10.2.0.255 is not in 10.1.0.0/24`,
				`ipam.ranges[0][0].exclude[2]: 2001:db8::1-2001:db8::1 is not in 10.1.0.0/24`,
			},
		},
		"routes": {
			netConf(`{"subnet": "10.1.0.0/24", "routes": [{}, {"dst": "10.0.0.1"}, {"dst": "0.0.0.0/0", "gw": "z", "mtu": -1, "advmss": -1, "priority": -1, "table": -1, "scope": 256}]}`),
			[]string{
				`ipam.routes[0].dst: "" is not a CIDR, such as 0.0.0.0/0`,
				`ipam.routes[1].dst: "10.0.0.1" is not a CIDR, such as 0.0.0.0/0`,
				`ipam.routes[2].gw: "z" is not an IP address`,
				`ipam.routes[2].mtu: -1 is not between 0 and 4294967295`,
				`ipam.routes[2].advmss: -1 is not between 0 and 4294967295`,
				`ipam.routes[2].priority: -1 is not between 0 and 4294967295`,
				`ipam.routes[2].table: -1 is not between 0 and 4294967295`,
				`ipam.routes[2].scope: 256 is not between 0 and 255`,
			},
		},
		"requested addresses": {
			`{"cniVersion": "1.1.0", "name": "net", "ipam": {"subnet": "10.1.0.0/24"}, "runtimeConfig": {"ips": ["10.1.0.5", "q"]}, "args": {"cni": {"ips": ["10.1.0.5/99"]}}}`,
			[]string{
				`runtimeConfig.ips[1]: "q" is neither an IP address nor a CIDR`,
				`args.cni.ips[0]: "10.1.0.5/99" is neither an IP address nor a CIDR`,
			},
		},
		"NUL in paths": {
			netConf(`{"subnet": "10.1.0.0/24", "dataDir": "/a\u0000b", "resolvConf": "\u0000"}`),
			[]string{"ipam.dataDir: holds a NUL byte", "ipam.resolvConf: holds a NUL byte"},
		},
		"several sets": {
			netConf(`{"subnet": "1", "ranges": [[{"subnet": "2"}], [{"subnet": "3"}]]}`),
			[]string{
				`ipam.subnet: "1" is not a CIDR, such as 10.1.0.0/16`,
				`ipam.ranges[0][0].subnet: "2" is not a CIDR, such as 10.1.0.0/16`,
				`ipam.ranges[1][0].subnet: "3" is not a CIDR, such as 10.1.0.0/16`,
			},
		},
		"wrong type": {netConf(`{"subnet": 7}`), []string{"ipam.subnet: is a JSON number, want string"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Role().New([]byte(c.conf))
			if !errors.Is(err, roles.ErrConf) {
				t.Fatalf("got %v, want an ErrConf", err)
			}
			if diff := cmp.Diff(c.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConfThatIsNoJSON(t *testing.T) {
	if _, err := Role().New([]byte(`{"ipam"`)); !errors.Is(err, roles.ErrDecode) {
		t.Errorf("got %v, want an ErrDecode", err)
	}
}

// FuzzConf: no configuration causes a panic, and a valid one gives only addresses of its ranges, no
// gateways.
func FuzzConf(f *testing.F) {
	for _, seed := range []string{
		netConf(`{"subnet": "10.1.0.0/24"}`),
		netConf(`{"ranges": [[{"subnet": "10.1.0.0/31"}], [{"subnet": "2001:db8::/64", "exclude": ["2001:db8::/65"]}]]}`),
		netConf(`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3"}, {"subnet": "10.1.4.0/24", "gateway": "10.1.0.2"}]], "exclude": ["10.1.0.3"]}`),
		netConf(`{"subnet": "128.0.0.0/2", "routes": [{"dst": "::/0", "gw": "::1", "table": 5, "scope": 0, "mtu": 9}], "resolvConf": ""}`),
		netConf(`{"subnet": "2000::/3", "rangeStart": "2000::", "exclude": ["2000::/4"]}`),
		`{"name": "n", "ipam": {"ranges": [[{"subnet": "10.1.0.5/32"}]]}, "runtimeConfig": {"ips": ["10.1.0.5/8"], "ipRanges": [[{"subnet": "10.2.0.0/16"}]]}, "args": {"cni": {"ips": ["::ffff:1.2.3.4"]}}}`,
	} {
		f.Add([]byte(seed))
	}
	b := newBed(f)
	f.Fuzz(func(t *testing.T, conf []byte) {
		a, err := newHandler(conf)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		a.Life = noLinks()
		a.resolvConf, a.Plan.DataDir = "", b.dataDir()
		req := request1("fuzz")
		defer b.del(t, a, req)
		r, err := a.Add(context.Background(), b.Host, req)
		if err != nil {
			return
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
		if len(r.IPs) != len(a.Plan.Sets) {
			t.Fatalf("%d addresses of %d sets", len(r.IPs), len(a.Plan.Sets))
		}
		for i, text := range ipsOf(r) {
			in := a.Plan.Sets[i].RangeOf(ip(text))
			if in == nil || !in.Subnet.Contains(ip(text)) || !in.Allows(ip(text)) || ip(text) == in.Gateway {
				t.Errorf("%s of set %d: %s", text, i, printSets(a.Plan))
			}
		}
	})
}

// TestManyRanges: a configuration with the largest number of ranges is read in memory that
// grows linearly, and a larger one is refused.
func TestManyRanges(t *testing.T) {
	conf := func(ranges, inSet int) []byte {
		sets := make([][]Range, ranges/inSet)
		for i := range ranges {
			set := &sets[i/inSet]
			*set = append(*set, Range{Subnet: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), Exclude: []string{fmt.Sprintf("10.%d.%d.9", i/256, i%256)}})
		}
		raw, err := json.Marshal(map[string]any{"name": "net", "ipam": map[string]any{"type": "host-local", "ranges": sets, "exclude": []string{"10.0.0.7"}}})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	work := func(ranges int) uint64 {
		raw := conf(ranges, ranges)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := newHandler(raw); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, many := work(maxRanges/16), work(maxRanges); many > 32*few {
		t.Errorf("%d ranges take %d bytes, a sixteenth of them %d", maxRanges, many, few)
	}
	for _, c := range []struct {
		raw  []byte
		want string
	}{
		{conf(2*maxRanges, 2*maxRanges), "ipam.ranges: has 1 range sets with 16384 ranges, at most 1024 sets with 8192 ranges are supported"},
		{conf(maxSets+1, 1), "ipam.ranges: has 1025 range sets with 1025 ranges"},
	} {
		_, err := newHandler(c.raw)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}
