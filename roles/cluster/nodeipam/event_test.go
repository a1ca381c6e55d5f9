package nodeipam

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// TestEventOnce: leaders of all terms make one event of a Node for each reason, also of one with a long name.
func TestEventOnce(t *testing.T) {
	made := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e struct{ Metadata struct{ Name string } }
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || e.Metadata.Name == "" || len(e.Metadata.Name) > 253 {
			t.Errorf("%v: %q", err, e.Metadata.Name)
		}
		if made[e.Metadata.Name]++; made[e.Metadata.Name] > 1 {
			w.WriteHeader(http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	client, err := rest.Open(rest.Choose("", server.URL, func(string) string { return "" }))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var log bytes.Buffer
	for range 3 { // terms
		r := kubernetes(client)
		for _, node := range []string{"a", strings.Repeat("n", 253)} {
			for _, reason := range []string{notAvailable, assignmentFailed} {
				r.event(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), node, "uid of "+node, reason, errors.New("full"))
			}
		}
	}
	if len(made) != 4 || strings.Contains(log.String(), "cannot make an event") {
		t.Errorf("%d events: %s", len(made), &log)
	}
}

// TestTableOfFollower: a process that does not lead names the leader in place of the networks.
func TestTableOfFollower(t *testing.T) {
	head, rows := (&status{Holder: "pod-b_X", Lease: "kube-system/cnibox-nodeipam"}).Table()
	if head[0] != "LEADER" || len(rows) != 1 || rows[0][0] != "pod-b_X" {
		t.Errorf("%v %v", head, rows)
	}
}
