package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// adversary is a server with answers that no API server gives.
func adversary(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	c, err := Open(Server(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// endless sends head and then part until the client closes the connection.
func endless(head, part string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, head)
		for chunk := strings.Repeat(part, 1000); err == nil; {
			_, err = io.WriteString(w, chunk)
		}
	}
}

// For any answer the client returns the right error, without a panic and within its memory bound.
func TestHostileReplies(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
	}{
		"nothing":        {says(200, ""), cluster.ErrUnavailable},
		"no JSON":        {says(200, "<html>"), cluster.ErrUnavailable},
		"half":           {says(200, `{"metadata":{"name":`), cluster.ErrUnavailable},
		"two":            {says(200, `{}{}`), cluster.ErrUnavailable},
		"deep":           {says(200, strings.Repeat("[", 100000)), cluster.ErrUnavailable},
		"wrong types":    {says(200, `{"metadata":{"annotations":[1]},"items":{"a":1}}`), nil},
		"endless string": {endless(`{"metadata":{"name":"`, "x"), cluster.ErrUnavailable},
		"endless item":   {endless(`{"items":[{"metadata":{"name":"`, "x"), cluster.ErrUnavailable},
		"endless key":    {endless(`{"`, "x"), cluster.ErrUnavailable},
		"endless spaces": {endless(`{`, " "), cluster.ErrUnavailable},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, cluster.ErrUnavailable},
		"not found":           {says(404, `{"message":"no such thing"}`), ErrNotFound},
		"gone":                {says(410, ``), ErrExpired},
		"unknown credentials": {says(401, `{"message":"Unauthorized"}`), ErrForbidden},
		"trouble":             {says(500, "\x1b[31m trouble"), cluster.ErrUnavailable},
		"endless refusal":     {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403); endless("x", "y")(w, r) }, ErrForbidden},
		"a code that is none": {says(999, ""), cluster.ErrUnavailable},
		"asks for a year": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "31536000")
			w.WriteHeader(429)
		}, cluster.ErrUnavailable},
		"a list without items": {says(200, `{"metadata":{"resourceVersion":"1"}}`), nil},
	} {
		client := adversary(t, c.answer)
		_, list := List(t.Context(), client, "/api/v1/nodes", func(*Pod) {})
		var p Pod
		for what, err := range map[string]error{
			"get": client.Get(t.Context(), "/api/v1/nodes/a", &p), "list": list,
			"watch": Watch(t.Context(), client, "/api/v1/nodes", Since{Version: "1"}, func(Event[*Pod]) {}),
			"patch": client.Patch(t.Context(), "/api/v1/nodes/a", MergePatch, Annotations("", "", nil), &p),
		} {
			if c.want == nil || what == "watch" && err == nil {
				continue // this answer is valid for it
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %s: %v, want %v", name, what, err, c.want)
			} else if len(err.Error()) > 1000 || strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("%s: %s: %d bytes: %q", name, what, len(err.Error()), err)
			}
		}
	}
}

// For a reply that is not HTTP, or is incomplete, the error is cluster.ErrUnavailable.
func TestRawGarbage(t *testing.T) {
	for _, garbage := range []string{
		"", "\x00\x01\x02", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "SSH-2.0-OpenSSH\r\n",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Header: "+strings.Repeat("x", 1000)+"\r\n", 200),
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, garbage)
				_ = c.Close()
			}
		}()
		c, err := Open(Server("http://" + l.Addr().String()))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), "/a", &Pod{}); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("%.40q: %v", garbage, err)
		}
		c.Close()
		_ = l.Close()
	}
}

// The reading of lists without an end, in circles or without items, ends.
func TestListEnds(t *testing.T) {
	c := adversary(t, says(200, `{"metadata":{"continue":"more","resourceVersion":"1"},"items":[]}`))
	if _, err := List(t.Context(), c, "/x", func(*Pod) {}); !errors.Is(err, errEndless) {
		t.Errorf("empty pages: %v", err)
	}
	page := `{"items":[` + strings.TrimSuffix(strings.Repeat("{},", maxObjects+1), ",")
	c = adversary(t, says(200, page))
	if _, err := List(t.Context(), c, "/x", func(*Pod) {}); !errors.Is(err, errEndless) {
		t.Errorf("an endless page: %v", err)
	}
	page = `{"metadata":{"continue":"more","resourceVersion":"1"},"items":[` + strings.TrimSuffix(strings.Repeat("{},", 1000), ",") + `]}`
	c = adversary(t, says(200, page))
	n := 0
	if _, err := List(t.Context(), c, "/x", func(*Pod) { n++ }); !errors.Is(err, errEndless) || n <= maxObjects {
		t.Errorf("full pages: %v after %d", err, n)
	}
}

// The pages of a list are requested one after the other.
func TestListPages(t *testing.T) {
	c := adversary(t, func(w http.ResponseWriter, r *http.Request) {
		next := map[string]string{"": "2", "2": "3", "3": ""}[r.URL.Query().Get("continue")]
		fmt.Fprintf(w, `{"kind":"List","metadata":{"continue":%q,"resourceVersion":"7"},"items":[{"metadata":{"name":"n%s"}}]}`, next, next)
	})
	var got []string
	version, err := List(t.Context(), c, "/x", func(p *Pod) { got = append(got, p.Metadata.Name) })
	if err != nil || version != "7" || strings.Join(got, " ") != "n2 n3 n" {
		t.Errorf("%q, %q, %v", got, version, err)
	}
}

// A watch reports the events, and why it ended.
func TestWatchEvents(t *testing.T) {
	event := func(kind, object string) string { return `{"type":"` + kind + `","object":` + object + "}\n" }
	for name, c := range map[string]struct {
		body string
		want error
		n    int
	}{
		"ends":             {event("ADDED", `{"metadata":{"name":"a"}}`) + event("DELETED", `{"metadata":{"name":"a"}}`), nil, 3},
		"expired":          {event("ERROR", `{"code":410,"reason":"Expired","message":"too old resource version"}`), ErrExpired, 1},
		"refused":          {event("ADDED", `{}`) + event("ERROR", `{"code":403}`), ErrForbidden, 2},
		"store":            {event("ERROR", `{"code":500,"reason":"InternalError"}`), cluster.ErrUnavailable, 1},
		"no object":        {`{"type":"ADDED"}`, cluster.ErrUnavailable, 1},
		"breaks":           {event("ADDED", `{}`) + `{"type":"MODIF`, cluster.ErrUnavailable, 2},
		"another kind":     {event("WHATEVER", `{}`) + event("BOOKMARK", `{"metadata":{"resourceVersion":"9"}}`), nil, 2},
		"object is a list": {event("ADDED", `[]`), cluster.ErrUnavailable, 1},
	} {
		client := adversary(t, says(200, c.body))
		n := 0
		err := Watch(t.Context(), client, "/x", Since{Version: "1"}, func(Event[*Pod]) { n++ })
		if !errors.Is(err, c.want) || n != c.n {
			t.Errorf("%s: %v after %d events, want %v after %d", name, err, n, c.want, c.n)
		}
	}
}

// The client pauses as the server requests, within the caller's deadline.
func TestRetryAfter(t *testing.T) {
	var asked atomic.Int32
	c := adversary(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, `{"metadata":{"name":"a"}}`)
	})
	var p Pod
	if err := c.Get(t.Context(), "/x", &p); err != nil || p.Metadata.Name != "a" || asked.Load() != 3 {
		t.Errorf("%+v, %v after %d", p, err, asked.Load())
	}
	asked.Store(-1000)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Get(ctx, "/x", &p); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("without patience: %v", err)
	}
}

// Names that would have another meaning in a path are refused before a request is
// sent.
func TestNames(t *testing.T) {
	c := adversary(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) })
	for _, name := range []string{"", "..", "a/b", "a?b", "A", "-a", "a%2fb", strings.Repeat("a", 300)} {
		_, pod := c.Pod(t.Context(), "default", name)
		_, namespace := c.Pod(t.Context(), name, "pod")
		_, network := c.Network(t.Context(), "default", name)
		annotate := c.AnnotatePod(t.Context(), "default", name, "", nil)
		for _, err := range []error{pod, namespace, network, annotate} {
			if !errors.Is(err, cluster.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}

// FuzzList: no bytes of a list cause a panic, and a complete list is JSON.
func FuzzList(f *testing.F) {
	f.Add([]byte(`{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a","annotations":{"a":"b"}},"spec":{"nodeName":"n"}}]}`))
	f.Add([]byte(`{"items":null,"metadata":{"resourceVersion":"1","continue":""}}`))
	f.Add([]byte(`{"metadata":{},"items":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		n := 0
		resp := &http.Response{Body: io.NopCloser(strings.NewReader(string(body)))}
		_, err := readList(t.Context(), resp, func(*Pod) bool { n++; return true })
		if err != nil && !errors.Is(err, cluster.ErrUnavailable) {
			t.Fatalf("%v is no ErrUnavailable", err)
		}
		var whole struct{ Items []json.RawMessage }
		if err == nil && json.Valid(body) && json.Unmarshal(body, &whole) == nil && len(whole.Items) > n {
			t.Fatalf("%d of %d items", n, len(whole.Items))
		}
	})
}
