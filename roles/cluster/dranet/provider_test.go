package dranet_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestAnswers: what DraNet sends, and what it gets for it.
func TestAnswers(t *testing.T) {
	c := newComputer(t, clusterDir(t), "a")
	c.network("00-broken.conf", `{"name": "broken", "ipam": {"type": "range", "range": "10.9.0.0/33"}}`)
	c.network("20-other.conf", `{"name": "other", "ipam": {"type": "whereabouts", "range": "10.8.0.0/28"}}`)
	c.network("30-dual.conflist", `{"name": "dual", "cniVersion": "1.0.0", "plugins": [{"type": "macvlan", "ipam": {"type": "range", "ipRanges": [{"range": "10.7.0.0/28"}, {"range": "fd07::/120"}], "gateway": "fd07::1",
		"routes": [{"dst": "::/0"}, {"dst": "10.0.0.0/8"}, {"dst": "192.0.2.0/24", "table": 7, "scope": 253}]}}]}`)
	c.network("40-sticky.conf", `{"name": "sticky", "ipam": {"type": "range", "range": "10.6.0.0/28", "sticky": {}}}`)
	c.network("50-plain.conf", `{"name": "plain", "type": "bridge", "ipam": {"type": "host-local"}}`)
	c.start()
	if st, err := os.Stat(c.path("run/dranet")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the socket's directory: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(c.socket()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", st.Mode(), err)
	}
	const get, release = "GetProfileConfig", "ReleaseProfileConfig"

	first := c.get("uid-1", "eth1")
	if a := c.must(get, body("uid-1", "eth1", config("lan"))); a.text != `{"interface":{"addresses":["`+first.String()+`/26"]},"routes":[{"destination":"10.0.0.0/8","gateway":"10.9.0.1"},{"destination":"192.0.2.0/24","gateway":"10.9.0.2"}]}` {
		t.Errorf("%+v", a)
	}
	if second := c.get("uid-1", "eth2"); second == first {
		t.Errorf("two devices of a claim have %s", first)
	}
	for i, q := range []struct {
		method, body string
		code         int
		want         string
	}{
		{get, body("uid-1", "eth1", config("other")), 409, "of profile \"lan\" for this claim, not of \"other\""},
		{get, body("uid-1", "eth1", config("none")), 404, "unknown profile \"none\": no network with ipam.type"},
		{get, body("uid-1", "eth1", config("plain")), 404, "unknown profile \"plain\""},
		{get, body("uid-1", "eth1", config("../lan")), 404, "unknown profile \"../lan\""},
		{get, body("uid-1", "eth1", config("broken")), 500, "00-broken.conf: ipam.range: "},
		{get, body("uid-1", "eth1", config("sticky")), 500, "ipam.sticky: "},
		{get, body("uid-1", "eth1", config("")), 400, "config.profile is missing"},
		{get, body("uid-1", "eth1", "null"), 400, "config.profile is missing"},
		{get, body("uid-1", "", config("lan")), 400, "device.name: "},
		{get, body("", "eth1", config("lan")), 400, "claim_uid: "},
		{get, body("a/b", "eth1", config("lan")), 400, "claim_uid: "},
		{get, body("uid-1", "eth\x00", config("lan")), 400, "malformed request"},
		{get, body(strings.Repeat("u", 129), "eth1", config("lan")), 400, "claim_uid: "},
		{get, body("uid-1", "eth1", config("lan", "10.9.0.300/26")), 400, "config.interface.addresses[0]: "},
		{get, body("uid-1", "eth1", config("lan")) + "x", 400, "malformed request"},
		{get, `[1]`, 400, "malformed request"},
		{get, `{"device":{"name":7}}`, 400, "malformed request"},
		{get, ``, 400, "malformed request"},
		{get, strings.Repeat("[", 900000), 400, "malformed request"},
		{get, `{"claim_uid":"` + strings.Repeat("u", 1<<20) + `"}`, 400, "too large"},
		{release, ``, 400, "malformed request"},
		{"GetDeviceConfig", `{}`, 404, "not found"},
		{get, body("uid-2", "eth1", config("lan", first.String()+"/26")), 409, "taken"},
		{get, body("uid-2", "eth1", config("lan", "192.0.2.1/24", "10.9.0.1/26")), 400, "config.interface.addresses[1]: 10.9.0.1 is the gateway"},
		{get, body("uid-2", "eth1", config("lan", "10.9.0.40/32", "10.9.0.41/26")), 400, "gives one address"},
		{release, body("uid-9", "eth1", "null"), 200, "{}"},
		{get, body("uid-3", "eth1", config("dual")), 200, `"routes":[{"destination":"::/0","gateway":"fd07::1"},{"destination":"10.0.0.0/8","scope":253},{"destination":"192.0.2.0/24","scope":253,"table":7}]`},
	} {
		if a := c.must(q.method, q.body); a.code != q.code || !strings.Contains(a.text, q.want) {
			t.Errorf("%d: %.200s: %+v, want %d, %s", i, q.body, a, q.code, q.want)
		}
	}
	if a := c.must(get, body("uid-3", "eth1", config("dual"))); len(a.addresses) != 2 || !strings.HasPrefix(a.addresses[0], "10.7.0.") || !strings.HasPrefix(a.addresses[1], "fd07::") {
		t.Errorf("%+v", a)
	}

	// The user's own address is leased and not returned, also if this node has no block with it.
	own := netip.MustParseAddr("10.9.0.44")
	for range 2 {
		if a := c.must(get, body("uid-4", "eth1", config("lan", own.String()+"/32", "192.0.2.1/24"))); a.code != 200 || len(a.addresses) != 0 || c.leases()["uid-4/eth1"] != own {
			t.Errorf("%+v, %v", a, c.leases())
		}
	}
	other := newComputer(t, c.cluster, "b")
	other.start()
	if a := other.must(get, body("uid-5", "eth1", config("lan", own.String()+"/26"))); a.code != 409 || !strings.Contains(a.text, own.String()) {
		t.Errorf("an address of another node: %+v", a)
	}

	// The network is removed: a release needs no profile.
	must(t, os.Remove(c.path("net.d/10-lan.conf")))
	if a := c.must(release, body("uid-1", "eth1", config("lan", first.String()+"/26"))); a.code != 200 {
		t.Errorf("%+v", a)
	}
	if _, has := c.leases()["uid-1/eth1"]; has {
		t.Error("not released")
	}
	c.network("10-lan.conf", strings.Replace(lan, "10.9.0.0/26", "10.99.0.0/26", 1))
	if a := c.must(get, body("uid-1", "eth2", config("lan"))); a.code != 500 || !strings.Contains(a.text, "the ranges of the network were changed") {
		t.Errorf("%+v", a)
	}
	for method, want := range map[string]int{"GET /GetProfileConfig": 405, "POST /health": 405, "GET /": 404} {
		verb, path, _ := strings.Cut(method, " ")
		r, err := http.NewRequestWithContext(t.Context(), verb, "http://localhost"+path, nil)
		must(t, err)
		res, err := c.calls.Do(r)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", method, res.StatusCode, want)
		}
	}
}

// TestHostileClient: bytes that are not HTTP, headers without an end and a body that never comes do not keep the provider from
// answering others.
func TestHostileClient(t *testing.T) {
	c := newComputer(t, clusterDir(t), "a")
	c.start()
	for _, text := range []string{"\x00\xff\x16\x03\x01", "GET /health HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 1<<16), "POST /GetProfileConfig HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		for range 20 {
			conn, err := net.Dial("unix", c.socket())
			must(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, text)
		}
	}
	c.get("uid-1", "eth1")
	conn, err := net.Dial("unix", c.socket())
	must(t, err)
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\nA: %s\r\n\r\n", strings.Repeat("a", 1<<16))
	if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "431") {
		t.Errorf("a header of 64 KiB: %q", line)
	}
}

// TestWithoutAgent: a node without blocks refuses, and says what to start. DraNet repeats the call.
func TestWithoutAgent(t *testing.T) {
	c := newComputer(t, clusterDir(t), "a")
	c.startProvider()
	c.listens()
	if a := c.must("GetProfileConfig", body("uid-1", "eth1", config("lan"))); a.code != 500 || !strings.Contains(a.text, "start 'cnibox agent' on this node") {
		t.Errorf("%+v", a)
	}
	c.startAgent()
	c.get("uid-1", "eth1")
}
