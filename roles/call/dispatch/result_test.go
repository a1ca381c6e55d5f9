package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// oneDocument asserts that a text is one JSON document, or nothing.
func oneDocument(tb testing.TB, s string) {
	tb.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	var v any
	if err := d.Decode(&v); err != nil && (!errors.Is(err, io.EOF) || s != "") {
		tb.Errorf("no JSON document: %v: %q", err, s)
	}
	if err := d.Decode(&v); !errors.Is(err, io.EOF) {
		tb.Errorf("more than one document: %q", s)
	}
}

func compact(tb testing.TB, raw []byte) string {
	tb.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// fullResult has every field of spec 1.1.0.
func fullResult() *roles.Result {
	r := sampleResult()
	r.Interfaces[0].Mac, r.Interfaces[0].Mtu, r.Interfaces[0].SocketPath, r.Interfaces[0].PciID = "02:00:00:00:00:01", 1400, "/s", "0000:00:01.0"
	r.IPs = append(r.IPs, &types100.IPConfig{Address: net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}})
	table, scope := 7, 0
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	r.Routes = []*types.Route{{Dst: *all, GW: net.IPv4(10, 0, 0, 1), MTU: 1300, AdvMSS: 1200, Priority: 5, Table: &table, Scope: &scope}}
	r.DNS.Nameservers = []string{"10.0.0.1"}
	return r
}

func TestRenderShapes(t *testing.T) {
	const (
		ip11 = `"ips":[{"interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"},{"address":"fd00::2/64"}]`
		ip04 = `"ips":[{"version":"4","interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"},{"version":"6","address":"fd00::2/64"}]`
		rt   = `"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]`
		dns  = `"dns":{"nameservers":["10.0.0.1"]}`
		ifs  = `"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/var/run/netns/a"}]`
		old  = `"ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]},"ip6":{"ip":"fd00::2/64"},`
	)
	want := map[string]string{
		"1.1.0": `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1400,"sandbox":"/var/run/netns/a","socketPath":"/s","pciID":"0000:00:01.0"}],` +
			ip11 + `,"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":1300,"advmss":1200,"priority":5,"table":7,"scope":0}],` + dns + `}`,
		"1.0.0": `{"cniVersion":"1.0.0",` + ifs + `,` + ip11 + `,` + rt + `,` + dns + `}`,
		"0.4.0": `{"cniVersion":"0.4.0",` + ifs + `,` + ip04 + `,` + rt + `,` + dns + `}`,
		"0.3.1": `{"cniVersion":"0.3.1",` + ifs + `,` + ip04 + `,` + rt + `,` + dns + `}`,
		"0.3.0": `{"cniVersion":"0.3.0",` + ifs + `,` + ip04 + `,` + rt + `,` + dns + `}`,
		"0.2.0": `{"cniVersion":"0.2.0",` + old + dns + `}`,
		"0.1.0": `{"cniVersion":"0.1.0",` + old + dns + `}`,
	}
	for _, v := range result.Versions() {
		r := fullResult()
		doc, err := render(r, v)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[v], compact(t, doc)); diff != "" {
			t.Errorf("%s: %s", v, diff)
		}
		if diff := cmp.Diff(fullResult(), r, cmp.Comparer(func(a, b net.IP) bool { return a.Equal(b) })); diff != "" {
			t.Errorf("%s: rendering changed the result: %s", v, diff)
		}
		back, err := result.DecodePrev(v, doc)
		if result.AtLeast(v, "0.3.0") && (err != nil || len(back.IPs) != 2) {
			t.Errorf("%s: read back: %v, %v", v, back, err)
		}
	}
}

func TestRenderEmptyDNS(t *testing.T) {
	for v, want := range map[string]bool{"1.1.0": false, "1.0.0": false, "0.4.0": true, "0.2.0": true} {
		doc, err := render(sampleResult(), v)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(compact(t, doc), `"dns":{}`); got != want {
			t.Errorf("%s: has \"dns\":{}: %v, want %v", v, got, want)
		}
	}
}

func TestRenderNullEntries(t *testing.T) {
	r := fullResult()
	r.Interfaces, r.IPs, r.Routes = append(r.Interfaces, nil), append(r.IPs, nil), append(r.Routes, nil)
	for _, v := range result.Versions() {
		if doc, err := render(r, v); err != nil || strings.Contains(string(doc), "null") {
			t.Errorf("%s: %s, %v", v, doc, err)
		}
	}
}

func TestDecodeDelegated(t *testing.T) {
	tests := []struct {
		name, conf, out string
		ips             int
		bad             bool
	}{
		{name: "same version", conf: "1.0.0", out: `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`, ips: 1},
		{name: "no version", conf: "0.4.0", out: `{"ips":[{"version":"4","address":"10.0.0.2/24"}]}`, ips: 1},
		{name: "older than the configuration", conf: "1.1.0", out: `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"},"ip6":{"ip":"fd00::2/64"}}`, ips: 2},
		{name: "interface that is not listed", conf: "1.0.0", out: `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24","interface":3}]}`, ips: 1},
		{name: "null", conf: "1.0.0", out: `null`},
		{name: "nothing", conf: "1.0.0", out: ``, bad: true},
		{name: "two", conf: "1.0.0", out: `{"cniVersion":"1.0.0"}{}`, bad: true},
		{name: "unknown version", conf: "1.0.0", out: `{"cniVersion":"3.0.0"}`, bad: true},
		{name: "null entry", conf: "0.4.0", out: `{"cniVersion":"0.4.0","interfaces":[null]}`, bad: true},
		{name: "no address", conf: "0.4.0", out: `{"cniVersion":"0.4.0","ips":[{"version":"4"}]}`, bad: true},
		{name: "ip4 without address", conf: "0.2.0", out: `{"cniVersion":"0.2.0","ip4":{}}`, bad: true},
		{name: "no JSON", conf: "1.0.0", out: `hello`, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := result.Decode(tt.conf, []byte(tt.out))
			if tt.bad {
				if !errors.Is(err, roles.ErrDecode) {
					t.Errorf("error %v, want ErrDecode", err)
				}
				return
			}
			if err != nil || len(r.IPs) != tt.ips || r.CNIVersion != roles.ResultVersion {
				t.Fatalf("%v, %v", r, err)
			}
			for _, ip := range r.IPs {
				if ip.Interface != nil {
					t.Errorf("interface %d", *ip.Interface)
				}
			}
		})
	}
}

func FuzzDecodeResult(f *testing.F) {
	for _, v := range result.Versions() {
		doc, err := render(fullResult(), v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(v, string(doc))
	}
	f.Fuzz(func(t *testing.T, version, doc string) {
		r, err := result.Decode(version, []byte(doc))
		if err != nil {
			if !errors.Is(err, roles.ErrDecode) {
				t.Errorf("error %v is no ErrDecode", err)
			}
			return
		}
		for _, v := range result.Versions() {
			out, err := render(r, v)
			if err == nil {
				oneDocument(t, string(out))
			}
		}
	})
}

// Decoding errors use JSON's terms and not Go's, because the author of the JSON reads
// them.
func TestDecodeFaults(t *testing.T) {
	for doc, want := range map[string]string{
		`{"prevResult":[]}`:                            "prevResult: cannot decode: is a JSON array, want object",
		`{"prevResult":{"ips":5}}`:                     "prevResult: cannot decode: ips: is a JSON number, want list",
		`{"cni.dev/valid-attachments":{}}`:             "cni.dev/valid-attachments: cannot decode: is a JSON object, want list",
		`{"cni.dev/valid-attachments":[7]}`:            "cni.dev/valid-attachments: cannot decode: is a JSON number, want object",
		`[]`:                                           "network configuration: cannot decode: is a JSON array, want object",
		`{"cniVersion":1}`:                             "network configuration: cannot decode: cniVersion: is a JSON number, want string",
		`{"cni.dev/valid-attachments":[{"ifname":1}]}`: "cni.dev/valid-attachments: cannot decode: ifname: is a JSON number, want string",
	} {
		h, err := decodeHeader([]byte(doc))
		if err == nil {
			_, err = h.valid()
		}
		if err == nil {
			_, err = result.DecodePrev("1.0.0", h.PrevResult)
		}
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", doc, err, want)
		}
	}
}
