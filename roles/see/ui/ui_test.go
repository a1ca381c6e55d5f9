package ui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/rates"
	"github.com/cnibox/cnibox/roles/see/topo"
	"github.com/cnibox/cnibox/test/browser"
)

// node is a node whose state has a number that every read increases.
func node(reads *atomic.Int64) func(context.Context) (*State, error) {
	return func(context.Context) (*State, error) {
		n := reads.Add(1)
		return &State{
			Topology: &topo.Topology{Node: "n1", Attachments: []topo.Attachment{{Container: fmt.Sprintf("pod-%d", n), IfName: "eth0", Network: "</script><script>alert(1)</script>"}}},
			Tables:   []Table{{Title: "findings <b>", Head: []string{"severity", "what"}, Rows: [][]string{{"error", "<img src=x onerror=alert(2)>"}}}},
			Calls: []topo.Call{
				{Time: time.Unix(100, 0), Took: 3 * time.Millisecond, Container: "<b>web", Text: "ADD bridge", Details: "1 ADD bridge\n3.0 ms (netlink 1.2)"},
				{Time: time.Unix(200, 0), Took: time.Millisecond, Container: "db", Text: "DEL bridge", Details: "2 DEL bridge\nerror 11: <script>alert(3)</script>", Failed: true},
			},
		}, nil
	}
}

// serve returns the address of a server on loopback.
func serve(t *testing.T, s *Server) string {
	t.Helper()
	addr, _ := serveUntil(t, s)
	return addr
}

// serveUntil also returns a function that ends the server.
func serveUntil(t *testing.T, s *Server) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), cancel
}

// TestRefused: other sites' names and pages, other methods and paths without the secret get nothing of the node,
// and no answer allows another origin.
func TestRefused(t *testing.T) {
	var reads atomic.Int64
	addr := serve(t, &Server{Read: node(&reads), Interval: time.Minute, Secret: "abc"})
	_, port, _ := net.SplitHostPort(addr)
	for _, c := range []struct {
		method, path, host, site string
		status                   int
	}{
		{"GET", "/abc/", "127.0.0.1:" + port, "", 200},
		{"GET", "/abc/", "localhost:8009", "none", 200},
		{"GET", "/abc/", "[::1]:8009", "same-origin", 200},
		{"GET", "/abc/json", "localhost", "", 200},
		{"GET", "/abc/", "evil.example:" + port, "", 421},
		{"GET", "/abc/", "localhost.evil.example", "", 421},
		{"GET", "/abc/", "192.0.2.1", "", 421},
		{"GET", "/abc/", "", "", 421},
		{"GET", "/abc/events", "evil.example", "", 421},
		{"GET", "/abc/json", "localhost", "cross-site", 403},
		{"GET", "/abc/events", "localhost", "same-site", 403},
		{"POST", "/abc/", "localhost", "", 405},
		{"OPTIONS", "/abc/json", "localhost", "", 405},
		{"HEAD", "/abc/", "localhost", "", 405},
		{"GET", "/", "localhost", "", 404},
		{"GET", "/abd/", "localhost", "", 404},
		{"GET", "/abc", "localhost", "", 404},
		{"GET", "/abc/x", "localhost", "", 404},
		{"GET", "/abc/../abc/x", "localhost", "", 404},
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // a wrong answer can be without an end
		text := c.method + " " + c.path + " HTTP/1.1\r\nHost: " + c.host + "\r\nConnection: close\r\nOrigin: http://evil.example\r\n"
		if c.site != "" {
			text += "Sec-Fetch-Site: " + c.site + "\r\n"
		}
		_, err = conn.Write([]byte(text + "\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		req := &http.Request{Method: c.method}
		resp, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, _ = body.ReadFrom(resp.Body) // the connection ends it
		_ = conn.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%+v: status %d", c, resp.StatusCode)
		}
		if c.status != 200 && strings.Contains(body.String(), "pod-") {
			t.Errorf("%+v: the answer has the node's state", c)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control-") || name == "Set-Cookie" {
				t.Errorf("%+v: header %s", c, name)
			}
		}
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; ") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%+v: policy %q", c, policy)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the node was read %d times within the interval", n)
	}
}

// TestEvents: events have the content in one line each, and an error is shown.
func TestEvents(t *testing.T) {
	var reads atomic.Int64
	read := node(&reads)
	addr := serve(t, &Server{Interval: time.Millisecond, Read: func(ctx context.Context) (*State, error) {
		if reads.Load() == 2 {
			reads.Add(1)
			return nil, errors.New("store: busy <b>")
		}
		return read(ctx)
	}})
	resp, err := http.Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var events []string
	for lines := bufio.NewScanner(resp.Body); len(events) < 4 && lines.Scan(); {
		if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
			events = append(events, data)
		}
	}
	for i, want := range []string{"pod-1", "pod-2", `\u003cp\u003estore: busy \u0026lt;b\u0026gt;\u003c/p\u003e`, "pod-4"} {
		if !strings.Contains(events[i], want) || strings.Contains(events[i], "<") {
			t.Errorf("event %d lacks %q: %s", i, want, events[i])
		}
	}
}

// TestConnections: too many connections are refused with an answer, and those beyond are closed. It ends with them.
func TestConnections(t *testing.T) {
	var reads atomic.Int64
	addr := serve(t, &Server{Read: node(&reads), Interval: time.Minute})
	var idle []net.Conn
	connect := func() net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		idle = append(idle, conn)
		return conn
	}
	get := func() (int, error) {
		conn := connect()
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, nil
	}
	for range maxConnections {
		connect()
	}
	if status, err := get(); status != http.StatusServiceUnavailable {
		t.Errorf("beside %d connections: status %d, %v", maxConnections, status, err)
	}
	for range maxConnections {
		connect()
	}
	if status, err := get(); err == nil {
		t.Errorf("beside %d connections: status %d, want none", 2*maxConnections, status)
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
	for status := 0; status != http.StatusOK; { // the server notices the ends one by one
		status, _ = get()
	}
}

// TestTimeout: a request that is not complete ends its connection, and events last longer than that: net/http removes the
// deadline when it has read a request.
func TestTimeout(t *testing.T) {
	var reads atomic.Int64
	addr := serve(t, &Server{Read: node(&reads), Interval: 50 * time.Millisecond, Timeout: 400 * time.Millisecond})
	for _, part := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\n", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %q the connection stays", part)
		}
		_ = conn.Close()
	}
	resp, err := http.Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := 0
	for lines := bufio.NewScanner(resp.Body); events < 16 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
	if events < 16 {
		t.Errorf("the events ended after %d", events)
	}
}

// TestBrowser opens the page in a browser. It follows the node, also with rates and with a box that has the focus, has no error, and no
// text becomes markup.
func TestBrowser(t *testing.T) {
	var reads atomic.Int64
	read := node(&reads)
	server := &Server{Interval: 50 * time.Millisecond, Rates: rates.New(rates.Span, nil), Secret: "abc"}
	for i := range uint64(5) {
		server.Rates.Add(map[string]rates.Counted{"eth0": {Received: i * 15 << 20}})
	}
	server.Read = func(ctx context.Context) (*State, error) {
		state, err := read(ctx)
		state.Topology.Devices = []topo.Device{{Name: "eth0", Up: true, Traffic: topo.Traffic{ReceivedPackets: 1000 * uint64(reads.Load())}}}
		return state, err
	}
	addr, stop := serveUntil(t, server)
	p := browser.Open(t, "http://"+addr+"/abc/#pod-")
	p.Wait("document.activeElement === search")
	p.Press("Tab") // to the first box
	p.Text("first = content.innerHTML")
	p.Wait(`live.textContent === "live" && content.innerHTML !== first && content.innerHTML.includes("packets/s")`)
	text := p.Text("document.body.outerHTML")
	for _, want := range []string{
		`<span id="count">1 found</span>`, "<h2>findings &lt;b&gt;</h2>", `<td data-column="what">&lt;img src=x onerror=alert(2)&gt;</td>`,
		"<h2>2 calls of plugins, 1 failed</h2>", `<button class="call problem faded" data-details="2 DEL bridge`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if !regexp.MustCompile(`<span class="line">rx 0 B/s, [1-9][0-9.]* packets/s</span>`).MatchString(text) {
		t.Errorf("the page has no rate:\n%s", text)
	}
	if have := p.Text("document.activeElement.dataset.details"); !strings.Contains(have, "routed by the host") {
		t.Errorf("after an event %q has the focus", have)
	}
	for _, fault := range p.Faults() {
		t.Error(fault)
	}
	if strings.Contains(text, "<script>alert") || strings.Contains(text, "<img") {
		t.Error("a text became markup")
	}
	failed := browser.Open(t, "http://"+addr+"/abc/#error 11")
	if have := failed.Text("details.textContent"); !strings.HasPrefix(have, "2 DEL bridge") {
		t.Errorf("a search finds %q", have)
	}
	p.Wait(`content.querySelector(".rates title")?.textContent.startsWith("rx at most 1.0 MiB/s, tx at most 0 B/s in the last 1m0s") === true`)
	if all := append(p.Messages(), failed.Messages()...); len(all) > 0 {
		t.Errorf("errors of the page: %v", all)
	}
	stop()
	p.Wait(`document.body.className === "stale" && live.textContent.startsWith("not connected: this is the node at ")`)
}
