package cloudsim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const interfaces = "/machine/plugins?comp=nmagent&type=getinterfaceinfov1"

// TestStatuses: HTTP statuses, for a number of requests, for some paths, with and without Retry-After.
func TestStatuses(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	do(t, s, "break", "401", "--count", "2")
	for i, want := range []int{401, 401, 200} {
		if r, _ := get(t, s, interfaces); r.StatusCode != want {
			t.Errorf("answer %d: %s", i, r.Status)
		}
	}
	for _, code := range []string{"410", "429", "500", "503"} {
		do(t, s, "break", code)
		if r, _ := get(t, s, interfaces); !strings.HasPrefix(r.Status, code) || r.Header.Get("Retry-After") != "" {
			t.Errorf("%s: %s, %v", code, r.Status, r.Header)
		}
		do(t, s, "heal")
	}
	do(t, s, "break", "429", "--retry-after", "7", "--path", "machine")
	if r, _ := get(t, s, interfaces); r.StatusCode != 429 || r.Header.Get("Retry-After") != "7" {
		t.Errorf("%s, %v", r.Status, r.Header)
	}
	do(t, s, "heal", "429")
	do(t, s, "break", "500", "--path", "elsewhere")
	if r, _ := get(t, s, interfaces); r.StatusCode != 200 {
		t.Errorf("a fault of another path: %s", r.Status)
	}
	counts := do(t, s, "count").(*Counts)
	if want := "map[200:2 401:2 410:1 429:2 500:1 503:1]"; fmt.Sprint(counts.Statuses) != want || counts.Requests != 9 {
		t.Errorf("%v, want %s", counts, want)
	}
}

// TestBodies: each faulty body is sent as documented.
func TestBodies(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	_, good := get(t, s, interfaces)
	for _, c := range []struct {
		kind   []string
		status int
		judge  func(r *http.Response, body string) bool
	}{
		{[]string{"empty"}, 200, func(_ *http.Response, body string) bool { return body == "" }},
		{[]string{"html"}, 200, func(r *http.Response, body string) bool {
			return strings.HasPrefix(body, "<!DOCTYPE html>") && r.Header.Get("Content-Type") == "text/html"
		}},
		{[]string{"truncated"}, 200, func(r *http.Response, body string) bool {
			return body == good[:len(good)/2] && r.ContentLength == int64(len(body))
		}},
		{[]string{"redirect"}, 302, func(r *http.Response, _ string) bool { return r.Header.Get("Location") == "http://192.0.2.1/" }},
		{[]string{"redirect", "--to", "http://203.0.113.9/x"}, 302, func(r *http.Response, _ string) bool {
			return r.Header.Get("Location") == "http://203.0.113.9/x"
		}},
		{[]string{"large"}, 200, func(_ *http.Response, body string) bool { return len(body) > 2<<20 && strings.HasPrefix(body, good) }},
		{[]string{"gzip"}, 200, func(r *http.Response, body string) bool {
			return r.Header.Get("Content-Encoding") == "gzip" && strings.HasPrefix(body, "\x1f\x8b")
		}},
		{[]string{"nothing"}, 200, func(_ *http.Response, body string) bool { return body == "<Interfaces></Interfaces>" }},
		{[]string{"only-primary"}, 200, has(`<IPAddress Address="10.240.0.35" IsPrimary="true"/></IPSubnet>`)},
		{[]string{"ipv6-only"}, 200, has(`IsPrimary="true"></Interface>`)},
		{[]string{"mac-lower"}, 200, has(`MacAddress="000d3a51c490"`)},
		{[]string{"mac-colons"}, 200, has(`MacAddress="00:0d:3a:51:c4:90"`)},
		{[]string{"mac-dashes"}, 200, has(`MacAddress="00-0D-3A-51-C4-90"`)},
		{[]string{"mac-any"}, 200, has(`MacAddress="*"`)},
		{[]string{"unknown-mac"}, 200, has(`MacAddress="02005E0053FE"`)},
		{[]string{"host-bits"}, 200, has(`Prefix="10.240.0.35/16"`)},
		{[]string{"prefix-32"}, 200, has(`Prefix="10.240.0.35/32"`)},
		{[]string{"outside"}, 200, has(`Address="10.241.0.1" IsPrimary="false"`)},
		{[]string{"same-subnet"}, 200, has(`<Interface MacAddress="02005E005301" IsPrimary="false"><IPSubnet Prefix="10.240.0.0/16"><IPAddress Address="10.240.255.254" IsPrimary="true"/>`)},
		{[]string{"duplicate"}, 200, func(_ *http.Response, body string) bool { return strings.Count(body, `"10.240.0.36"`) == 2 }},
		{[]string{"many"}, 200, func(_ *http.Response, body string) bool { return strings.Count(body, `IsPrimary="false"/>`) == many }},
	} {
		do(t, s, append([]string{"break"}, c.kind...)...)
		r, body := get(t, s, interfaces)
		if r.StatusCode != c.status || !c.judge(r, body) {
			t.Errorf("%s: %s, %v, %.300q", c.kind, r.Status, r.Header, body)
		}
		do(t, s, "heal")
	}
	if _, body := get(t, s, interfaces); body != good {
		t.Errorf("healed, it says %q", body)
	}
}

func has(part string) func(*http.Response, string) bool {
	return func(_ *http.Response, body string) bool { return strings.Contains(body, part) }
}

// TestConnections: faults below HTTP.
func TestConnections(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	const request = "GET " + interfaces + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	do(t, s, "break", "refuse")
	if _, err := raw(t, s, request); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refuse: %v", err)
	}
	do(t, s, "heal")
	if out, err := raw(t, s, request); err != nil || !strings.HasPrefix(out, "HTTP/1.1 200") {
		t.Errorf("healed: %v, %q", err, out)
	}
	do(t, s, "break", "reset", "--count", "1")
	if out, err := raw(t, s, request); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v, %q", err, out)
	}
	do(t, s, "break", "cut", "--count", "1")
	out, err := raw(t, s, request)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(out)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) || len(b) == 0 {
		t.Errorf("cut: %d bytes, %v", len(b), err)
	}
	do(t, s, "break", "endless")
	c, err := net.Dial("tcp", s.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, request)
	if n, err := io.CopyN(io.Discard, c, 20<<20); err != nil {
		t.Errorf("endless ended after %d bytes: %v", n, err)
	}
	do(t, s, "heal")
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// TestSlow: a hanging or slow answer sends nothing, or not everything, until the fault is healed.
func TestSlow(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	for _, kind := range [][]string{{"hang"}, {"slow-headers", "--delay", "1h"}, {"slow-body", "--delay", "1h"}} {
		do(t, s, append([]string{"break"}, kind...)...)
		c, err := net.Dial("tcp", s.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET "+interfaces+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		b := bufio.NewReader(c)
		if kind[0] == "slow-body" {
			r, err := http.ReadResponse(b, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.ReadFull(r.Body, make([]byte, 10)); n != 10 {
				t.Errorf("the first bytes: %v", err)
			}
		} else {
			// The request is counted when it has arrived; what does not follow is the fault.
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if n, err := b.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("%s: something was sent", kind)
			}
			_ = c.SetReadDeadline(time.Time{})
		}
		do(t, s, "heal")
		rest, err := io.ReadAll(b)
		if err != nil || !strings.HasSuffix(string(rest), "</Interfaces>") {
			t.Errorf("%s, healed: %v, %q", kind, err, rest)
		}
		c.Close()
	}
	do(t, s, "break", "slow-headers", "--delay", "1ms")
	do(t, s, "break", "slow-body", "--delay", "1ms")
	if r, body := get(t, s, interfaces); r.StatusCode != 200 || !strings.HasSuffix(body, "</Interfaces>") {
		t.Errorf("a little slow: %s, %q", r.Status, body)
	}
}

// TestTokens: tokens end after their time, by an order, and by use.
func TestTokens(t *testing.T) {
	clock := time.Unix(1700000000, 0)
	for provider, header := range map[string]string{"aws": awsToken, "alibaba": alibabaToken} {
		s := start(t, Options{Providers: []string{provider}, Now: func() time.Time { return clock }})
		token := func() string {
			_, body := ask(t, s, "PUT", tokenPath, header+"-ttl-seconds: 60")
			return header + ": " + body
		}
		use := func(h string) int {
			r, _ := get(t, s, "/latest/meta-data/mac", h)
			return r.StatusCode
		}
		one := token()
		if got := []int{use(one), use(one)}; got[0] != 200 || got[1] != 200 {
			t.Errorf("%s: %v", provider, got)
		}
		clock = clock.Add(60 * time.Second)
		if got := use(one); got != 401 {
			t.Errorf("%s: after its time: %d", provider, got)
		}
		two := token()
		if out := do(t, s, "expire"); out != "2 tokens ended" || use(two) != 401 {
			t.Errorf("%s: expire: %v", provider, out)
		}
		do(t, s, "break", "token-once")
		three := token()
		if got := []int{use(three), use(three)}; got[0] != 200 || got[1] != 401 {
			t.Errorf("%s: token-once: %v", provider, got)
		}
	}
}

// TestThrottle: requests above the limit in a period are refused.
func TestThrottle(t *testing.T) {
	clock := time.Unix(1700000000, 0)
	s := start(t, Options{Providers: []string{"azure"}, Now: func() time.Time { return clock }})
	do(t, s, "throttle", "2", "--period", "10s", "--retry-after=3")
	ask := func() string {
		r, _ := get(t, s, interfaces)
		return r.Header.Get("Retry-After")
	}
	if got := []string{ask(), ask(), ask()}; fmt.Sprint(got) != "[  3]" {
		t.Errorf("%q", got)
	}
	clock = clock.Add(10 * time.Second)
	if got := []string{ask(), ask(), ask()}; fmt.Sprint(got) != "[  3]" {
		t.Errorf("later: %q", got)
	}
	do(t, s, "throttle", "off")
	if ask() != "" {
		t.Error("off, it still refuses")
	}
}

// TestModel: addresses are added and withdrawn; an invalid change is refused and changes nothing.
func TestModel(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}, NICs: twoNICs()})
	do(t, s, "add", "10.0.1.22", "10.0.1.80/28", "10.0.0.9")
	do(t, s, "withdraw", "10.0.0.11", "10.0.1.64/28")
	_, body := get(t, s, interfaces)
	for part, want := range map[string]bool{`"10.0.1.22"`: true, `"10.0.0.9"`: true, `"10.0.0.11"`: false, `"10.0.0.12"`: true} {
		if strings.Contains(body, part) != want {
			t.Errorf("%s is there: %t: %s", part, !want, body)
		}
	}
	before := fmt.Sprint(do(t, s, "show"))
	for _, c := range [][]string{
		{"add", "10.0.1.23", "10.9.0.1"},
		{"add", "10.0.1.22"},
		{"add", "10.0.0.10"}, // the node's own
		{"add", "--nic", "1", "10.0.0.77"},
		{"add", "ten"},
		{"add", "10.0.0.1/24"},
		{"withdraw", "10.0.0.12", "10.0.0.200"},
		{"withdraw", "10.0.0.10"},
		{"withdraw"},
		{"add", "--where", "1", "10.0.0.77"},
		{"break", "nothing", "--count", "0"},
		{"break", "nothing", "--count"},
		{"break", "wings"},
		{"break", "200"},
		{"break", "refuse", "--count", "1"},
		{"break", "slow-body", "--delay", "-1s"},
		{"break"},
		{"heal", "hang"},
		{"throttle", "0"},
		{"throttle", "5", "--period", "0s"},
		{"count", "more"},
		{"explode"},
		{},
	} {
		if out, err := s.Do(c...); err == nil {
			t.Errorf("%q: %v", c, out)
		}
	}
	if after := fmt.Sprint(do(t, s, "show")); after != before {
		t.Errorf("refused commands changed\n%s\nto\n%s", before, after)
	}
	do(t, s, "add", "--nic", "1", "100.64.0.0/24")
	if shown := fmt.Sprint(do(t, s, "show")); !strings.Contains(shown, "100.64.0.0/24") {
		t.Errorf("a range from elsewhere: %s", shown)
	}
}

// TestScript: lines run before the requests that they name.
func TestScript(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}, Script: `
		withdraw 10.240.0.36      # at once
		@2 break 503 --count 1
		@4 add 10.240.0.36
	`})
	var got []string
	for range 4 {
		r, body := get(t, s, interfaces)
		got = append(got, fmt.Sprint(r.StatusCode, strings.Contains(body, `"10.240.0.36"`)))
	}
	if want := "[200 false 503 false 200 false 200 true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	for script, want := range map[string]string{
		"@0 heal":          `line 1: "@0" is not the number`,
		"@2 heal\n@1 heal": "line 2: it follows",
		"brake 429":        `line 1: "brake 429" is not an order`,
		"break 429 --x 1":  "line 1: break: --x is not a flag",
		"break wings":      `"wings" is not a fault`,
		"throttle many":    `"many": use a number`,
	} {
		if _, err := parseScript(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", script, err, want)
		}
	}
	if _, err := Start(t.Context(), Options{Providers: []string{"azure"}, Listen: []string{"127.0.0.1:0"}, Script: "withdraw 192.0.2.1"}); err == nil {
		t.Error("a script whose first line fails")
	}
}

// TestWait: Google's server lets a client wait for a change, up to a time limit.
func TestWait(t *testing.T) {
	s := start(t, Options{Providers: []string{"gcp"}, NICs: twoNICs()})
	const aliases = "/computeMetadata/v1/instance/network-interfaces/0/ip-aliases/?recursive=true"
	r, before := get(t, s, aliases, "Metadata-Flavor: Google")
	tag := r.Header.Get("ETag")
	if r, body := get(t, s, aliases+"&wait_for_change=true&last_etag=old", "Metadata-Flavor: Google"); r.Header.Get("ETag") != tag || body != before {
		t.Errorf("who is behind is answered at once: %v, %s", r.Header, body)
	}
	if _, body := get(t, s, aliases+"&wait_for_change=true&timeout_sec=1&last_etag="+tag, "Metadata-Flavor: Google"); body != before {
		t.Errorf("after the time: %s", body)
	}
	answered := make(chan string)
	go func() {
		_, body := get(t, s, aliases+"&wait_for_change=true&last_etag="+tag, "Metadata-Flavor: Google")
		answered <- body
	}()
	for do(t, s, "count").(*Counts).Requests < 4 { // until the request has come
		runtime.Gosched()
	}
	do(t, s, "add", "10.0.1.77") // of another NIC: nothing that is waited for
	do(t, s, "withdraw", "10.0.0.11")
	if body := <-answered; body != `["10.0.0.12/32"]` {
		t.Errorf("after the change: %s", body)
	}
	do(t, s, "break", "etag")
	one, _ := get(t, s, aliases, "Metadata-Flavor: Google")
	two, _ := get(t, s, aliases, "Metadata-Flavor: Google")
	if one.Header.Get("ETag") == two.Header.Get("ETag") {
		t.Error("etag is not another each time")
	}
}

// TestForwarded: requests through a proxy are counted.
func TestForwarded(t *testing.T) {
	s := start(t, Options{Providers: []string{"azure"}})
	get(t, s, "http://168.63.129.16"+interfaces)
	get(t, s, interfaces, "Via: 1.1 proxy")
	get(t, s, interfaces)
	if c := do(t, s, "count").(*Counts); c.Forwarded != 2 || c.Requests != 3 {
		t.Errorf("%+v", c)
	}
}
