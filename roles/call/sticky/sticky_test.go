package sticky

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

func TestParse(t *testing.T) {
	const pod = keyPod
	cases := map[string]struct {
		conf string
		want Rules
		// faults is the text of the error.
		faults string
	}{
		"defaults":        {`{}`, Rules{pod, 300, 30, false}, ""},
		"all":             {`{"key": "mac", "ttl": "1h30m", "cooldown": 5, "mode": "strict"}`, Rules{keyMAC, 5400, 5, true}, ""},
		"seconds":         {`{"ttl": 90, "cooldown": "1.2"}`, Rules{pod, 90, 2, false}, ""},
		"off":             {`{"ttl": 0, "cooldown": "0s"}`, Rules{pod, 0, 0, false}, ""},
		"never":           {`{"ttl": "never"}`, Rules{pod, store.KeepForever, 30, false}, ""},
		"never as Terway": {`{"ttl": -1}`, Rules{pod, store.KeepForever, 30, false}, ""},
		"null":            {`{"ttl": null}`, Rules{pod, 300, 30, false}, ""},
		"none":            {`{"key": "none"}`, Rules{keyNone, 0, 30, false}, ""},
		"none for a time": {`{"key": "none", "ttl": "5m"}`, Rules{}, `ipam.sticky.ttl: has no effect with key "none": remove it`},
		"all wrong": {
			`{"key": "name", "ttl": "soon", "cooldown": "never", "mode": "both"}`,
			Rules{},
			`ipam.sticky.key: "name" is not one of "pod", "container-name", "mac", "none"` + "\n" +
				`ipam.sticky.ttl: "soon" is not a duration: want one such as "5m", a number of seconds, or "never"` + "\n" +
				`ipam.sticky.cooldown: "never" is not possible: an address that never cools down is lost` + "\n" +
				`ipam.sticky.mode: "both" is neither "prefer" nor "strict"`,
		},
		"negative":  {`{"ttl": -2}`, Rules{}, `ipam.sticky.ttl: "-2" is not from 0 to 2147483647 seconds`},
		"too long":  {`{"ttl": 1e300}`, Rules{}, `ipam.sticky.ttl: "1e300" is not from 0 to 2147483647 seconds`},
		"no number": {`{"ttl": "NaN"}`, Rules{}, `ipam.sticky.ttl: "NaN" is not from 0 to 2147483647 seconds`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var conf Conf
			if err := json.Unmarshal([]byte(c.conf), &conf); err != nil {
				t.Fatal(err)
			}
			var f roles.Faults
			r := Parse(&f, "ipam.sticky", &conf)
			got := ""
			if err := f.Err(); err != nil {
				got = err.Error()
			}
			if got != c.faults || got == "" && *r != c.want {
				t.Errorf("%+v, faults:\n%s\nwant %+v,\n%s", *r, got, c.want, c.faults)
			}
		})
	}
	var f roles.Faults
	if Parse(&f, "", nil) != nil || f.Err() != nil {
		t.Error("without the object addresses stick")
	}
	for _, wrong := range []string{`{"ttl": {}}`, `{"ttl": true}`, `{"cooldown": [1]}`} {
		if json.Unmarshal([]byte(wrong), new(Conf)) == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func TestRequested(t *testing.T) {
	const at = `runtimeConfig["io.kubernetes.cri.pod-annotations"]`
	cases := map[string]struct {
		annotations  map[string]string
		path, faults string
		want         []string
	}{
		"none":            {map[string]string{"other": "10.1.0.9"}, `["a/ips"]`, "", nil},
		"one":             {map[string]string{"a/ips": "10.1.0.9"}, `["a/ips"]`, "", []string{"10.1.0.9"}},
		"two, spaces":     {map[string]string{"a/ips": " 10.1.0.9/24 , 2001:db8::9 "}, `["a/ips"]`, "", []string{"10.1.0.9", "2001:db8::9"}},
		"JSON, as Calico": {map[string]string{"a/ips": `["10.1.0.9", "::ffff:10.1.0.8"]`}, `["a/ips"]`, "", []string{"10.1.0.9", "10.1.0.8"}},
		"empty":           {map[string]string{"a/ips": " "}, `["a/ips"]`, "", nil},
		"of the network":  {map[string]string{"a/ips": "10.1.0.9", "a/ips.net": "10.1.0.8", "a/ips.other": "x"}, `["a/ips.net"]`, "", []string{"10.1.0.8"}},
		"none of this":    {map[string]string{"a/ips": "10.1.0.9", "a/ips.net": ""}, `["a/ips.net"]`, "", nil},
		"faults":          {map[string]string{"a/ips": "x,10.1.0.9,fe80::1%eth0"}, `["a/ips"]`, at + `["a/ips"]: "x" is neither an IP address nor a CIDR` + "\n" + at + `["a/ips"]: "fe80::1%eth0" is neither an IP address nor a CIDR`, []string{"10.1.0.9"}},
		"no JSON":         {map[string]string{"a/ips": "[1]"}, `["a/ips"]`, at + `["a/ips"]: is not a JSON list of texts: is a JSON number, want string`, nil},
		"endless":         {map[string]string{"a/ips": strings.Repeat("1", 5000)}, `["a/ips"]`, at + `["a/ips"]: is longer than 4096 bytes`, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var f roles.Faults
			path, addrs := Requested(&f, c.annotations, "a/ips", "net")
			got := ""
			if err := f.Err(); err != nil {
				got = err.Error()
			}
			var texts []string
			for _, a := range addrs {
				texts = append(texts, a.String())
			}
			if path != at+c.path || got != c.faults || !slices.Equal(texts, c.want) {
				t.Errorf("%s %v, faults:\n%s\nwant %v,\n%s", path, texts, got, c.want, c.faults)
			}
		})
	}
}

func TestParseIdentity(t *testing.T) {
	for text, want := range map[string]string{
		"default/web-0":             "pod:default/web-0/eth0",
		"pod:default/web-0/net1":    "pod:default/web-0/net1",
		"name:web":                  "name:web/eth0",
		"name:web/net1":             "name:web/net1",
		"container:4f2a":            "container:4f2a/eth0",
		"mac:02-00-00-00-00-AB":     "mac:02:00:00:00:00:ab",
		"web-0":                     "",
		"a/b/c/d":                   "",
		"pod:/web/eth0":             "",
		"mac:x":                     "",
		"host:x":                    "",
		"":                          "",
		"pod:default/web-0/eth0/..": "",
	} {
		got, err := ParseIdentity(text)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"never": {}, "48h": now.Add(48 * time.Hour), "90": now.Add(90 * time.Second),
		"2027-01-31T12:00:00+02:00": time.Date(2027, 1, 31, 10, 0, 0, 0, time.UTC),
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	if _, err := ParseTime("tomorrow", now); err == nil {
		t.Error("tomorrow is a time")
	}
}

// FuzzConf: any object is refused, or its rules have sane times.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"key":"pod","ttl":"1e9h","cooldown":-0.5,"mode":"strict"}`))
	f.Add([]byte(`{"ttl":"9223372036854775807","cooldown":1e18}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c Conf
		if json.Unmarshal(raw, &c) != nil {
			return
		}
		var faults roles.Faults
		r := Parse(&faults, "ipam.sticky", &c)
		if faults.Err() != nil {
			return
		}
		if r.TTL < store.KeepForever || r.Cooldown < 0 {
			t.Errorf("%+v", r)
		}
		res := store.Reservation{TTL: r.TTL, Cooldown: r.Cooldown, Holder: store.Key{Network: "n"}, Released: time.Now(), Addresses: []netip.Addr{{}}}
		if res.Stage(time.Now().Add(-time.Minute)) == store.Expired && r.TTL != 0 {
			t.Errorf("%+v has expired before its release", res)
		}
	})
}

// FuzzRequested: any annotation is read or refused.
func FuzzRequested(f *testing.F) {
	f.Add(`["10.1.0.9"]`)
	f.Add("10.1.0.9,::1/64")
	f.Add(`[{}]`)
	f.Fuzz(func(t *testing.T, value string) {
		var faults roles.Faults
		_, addrs := Requested(&faults, map[string]string{DefaultAnnotation: value}, DefaultAnnotation, "net")
		for _, a := range addrs {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%q: %v", value, a)
			}
		}
	})
}
