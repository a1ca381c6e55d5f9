// Package ui serves the page of a node's networks, which follows the node. It only reads.
//
// A browser on the machine of an administrator also shows other pages. They cannot read this one: the
// server answers only requests for a local name, so that no other site's name can lead to it, and
// refuses requests that other sites' pages make. Nothing allows other origins.
package ui

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/netops/rates"
	"github.com/cnibox/cnibox/roles/see/topo"
)

// maxStreams is the maximum number of pages that follow the node at a time.
const maxStreams = 8

// maxConnections is the number of open connections above which all requests are refused. A browser opens up to six.
// From twice that number on, further connections are closed without an answer.
const maxConnections = 48

// defaultTimeout is that of a Server.
const defaultTimeout = 10 * time.Second

// rateIntervals is the number of intervals after which a rate would be of a time when nobody looked.
const rateIntervals = 6

// State is what the page shows.
type State struct {
	Topology *topo.Topology `json:"topology"`
	Tables   []Table        `json:"tables"`
	// Calls are drawn under the tables.
	Calls []topo.Call `json:"calls"`
}

// Table is shown under the drawing. The first cell of a row of findings is a severity. Without rows the title is a sentence.
type Table struct {
	Title string     `json:"title"`
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
}

// Server serves the page.
type Server struct {
	// Read reads the node, at most once per Interval.
	Read     func(ctx context.Context) (*State, error)
	Interval time.Duration
	// Rates are those of the host's links. It may be nil.
	Rates *rates.History
	// Secret is the first element of all paths, if it is not empty.
	Secret string
	// Timeout is the maximum time to read a request, and to write one answer or event. 0 is 10 seconds.
	Timeout time.Duration

	// open is the number of connections.
	open atomic.Int64

	mu    sync.Mutex
	state *State
	err   error
	read  time.Time
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.Timeout = cmp.Or(s.Timeout, defaultTimeout)
	srv := &http.Server{
		Handler: s.handler(), ReadTimeout: s.Timeout, WriteTimeout: s.Timeout, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnState: s.count,
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// count follows the number of connections.
func (s *Server) count(c net.Conn, state http.ConnState) {
	switch {
	case state == http.StateNew && s.open.Add(1) > 2*maxConnections:
		_ = c.Close() // the server notices it, and counts its end
	case state == http.StateClosed:
		s.open.Add(-1)
	}
}

func (s *Server) handler() http.Handler {
	prefix := "/"
	if s.Secret != "" {
		prefix += s.Secret + "/"
	}
	streams := make(chan struct{}, maxStreams)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      topo.Policy(true) + "; frame-ancestors 'none'",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		path := r.URL.Path
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case s.open.Load() > maxConnections:
			w.Header().Set("Connection", "close")
			http.Error(w, "too many connections are open; close pages, or end programs that connect to this port", http.StatusServiceUnavailable)
		case !isLocal(r.Host):
			http.Error(w, "use the name localhost or a loopback address", http.StatusMisdirectedRequest)
		case site != "" && site != "same-origin" && site != "none":
			http.Error(w, "refused: another website made this request. Open the URL that cnibox ui has printed", http.StatusForbidden)
		case len(path) < len(prefix) || subtle.ConstantTimeCompare([]byte(path[:len(prefix)]), []byte(prefix)) != 1:
			http.NotFound(w, r)
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
		case path == prefix:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			state, err := s.current(r.Context())
			_, _ = fmt.Fprint(w, topo.Page(title(state), content(state, err), true))
		case path == prefix+"json":
			s.json(w, r)
		case path == prefix+"events":
			select {
			case streams <- struct{}{}:
				s.events(w, r)
				<-streams
			default:
				http.Error(w, "too many pages follow this node", http.StatusServiceUnavailable)
			}
		default:
			http.NotFound(w, r)
		}
	})
}

// isLocal reports whether a Host header names this machine by a name that no other site can have.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// current returns the state, which is as old as the interval at most.
func (s *Server) current(ctx context.Context) (*State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.read) < s.Interval {
		return s.state, s.err
	}
	state, err := s.Read(ctx)
	if elapsed := time.Since(s.read); state != nil && s.state != nil && elapsed < rateIntervals*s.Interval {
		state.Topology.Since(s.state.Topology, elapsed)
	}
	if state != nil && s.Rates != nil {
		state.Topology.Rates = s.Rates.Links()
	}
	if ctx.Err() == nil { // otherwise the page was closed
		s.state, s.err, s.read = state, err, time.Now()
	}
	return state, err
}

func (s *Server) json(w http.ResponseWriter, r *http.Request) {
	state, err := s.current(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state)
}

// events sends the content when it changes (server-sent events).
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for last := ""; ; {
		event := ": nothing changed\n\n" // it finds a closed connection
		if now := content(s.current(r.Context())); now != last {
			text, _ := json.Marshal(now) // a string has a JSON form, in one line
			event, last = "data: "+string(text)+"\n\n", now
		}
		_ = control.SetWriteDeadline(time.Now().Add(s.Timeout))
		if _, err := fmt.Fprint(w, event); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func title(s *State) string {
	if s == nil {
		return "cnibox"
	}
	return s.Topology.Node
}

// content returns the markup of a state, or of the error that reading it had.
func content(s *State, err error) string {
	if err != nil {
		return "<p>" + topo.Escaped(err.Error()) + "</p>"
	}
	var b strings.Builder
	b.WriteString(s.Topology.Content())
	for _, t := range s.Tables {
		if len(t.Rows) == 0 {
			fmt.Fprintf(&b, "<p>%s</p>\n", topo.Escaped(t.Title))
			continue
		}
		fmt.Fprintf(&b, "<h2>%s</h2>\n<table><tr>", topo.Escaped(t.Title))
		for _, name := range t.Head {
			fmt.Fprintf(&b, "<th>%s</th>", topo.Escaped(name))
		}
		for _, r := range t.Rows {
			fmt.Fprintf(&b, "</tr>\n<tr class=\"%s\">", topo.Escaped(r[0])) // the severity has a colour
			for i, text := range r {
				fmt.Fprintf(&b, `<td data-column="%s">%s</td>`, topo.Escaped(t.Head[i]), topo.Escaped(text)) // a narrow page has no line of heads
			}
		}
		b.WriteString("</tr></table>\n")
	}
	b.WriteString(topo.Timeline(s.Calls))
	return b.String()
}
