package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// script is a server. Its list has one node, whose name has the number of lists. Its watches get the
// given answers, one after the other.
type script struct {
	lists, watches atomic.Int32
	version        int
	says           []string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "" {
		n := s.lists.Add(1)
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, s.version, participant(fmt.Sprintf("list-%d", n), int(n)))
		return
	}
	if r.URL.Query().Has("sendInitialEvents") {
		w.WriteHeader(http.StatusUnprocessableEntity) // as a server without streaming lists
		return
	}
	n := int(s.watches.Add(1)) - 1
	if n < len(s.says) {
		fmt.Fprint(w, s.says[n])
		return
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func participant(name string, i int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"annotations":{"flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/backend-type":"vxlan",`+
		`"flannel.alpha.coreos.com/public-ip":"192.0.2.1"}},"spec":{"podCIDRs":["10.128.%d.0/24"]}}`, name, i)
}

// All nodes are read again if a change may have been missed, with any content of the stream.
func TestReadAgain(t *testing.T) {
	const opened = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"101"}}}`
	for name, says := range map[string][]string{
		"expired inside":                      {opened + `{"type":"ERROR","object":{"code":410}}`},
		"expired as Expired":                  {`{"type":"ERROR","object":{"reason":"Expired"}}`},
		"a restored store":                    {opened + `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"50"}}}`},
		"a restored store that sends nothing": {"", ""},
		"trouble that stays":                  {`{"type":"ERROR","object":{"code":500}}`},
		"an error without a code":             {`{"type":"ERROR","object":{}}`},
	} {
		s := &script{version: 100, says: says}
		srv := httptest.NewServer(s)
		f := followed(t, srv)
		ctx, stop := context.WithCancel(t.Context())
		_ = clustertest.Watch(ctx, func(ctx context.Context, relay *cluster.Relay) error {
			f.Relay = relay
			return rest.Follow(ctx, f.registry.client, nodes, f)
		}, func(u cluster.Update) {
			if s := u.Snapshot; s != nil && len(s.Nodes) == 1 && s.Nodes[0].Name == "list-2" {
				stop()
			}
		})
		if lists := s.lists.Load(); lists != 2 {
			t.Errorf("%s: %d lists, %+v", name, lists, f.Table.Snapshot().Nodes)
		}
		stop()
		srv.Close()
	}
}

// A broken stream is continued.
func TestGoesOn(t *testing.T) {
	s := &script{version: 100, says: []string{
		`{"type":"ADDED","object":` + participant("two", 2) + `}{"type":"BOOKM`,
		`{"type":"ADDED","object":` + participant("three", 3) + `}` + `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"102"}}}`,
		`{"type":"ADDED","object":` + participant("four", 4) + `}`,
	}}
	srv := httptest.NewServer(s)
	defer srv.Close()
	f := followed(t, srv)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_ = clustertest.Watch(ctx, func(ctx context.Context, relay *cluster.Relay) error {
		f.Relay = relay
		return rest.Follow(ctx, f.registry.client, nodes, f)
	}, func(u cluster.Update) {
		if u.Snapshot != nil && len(u.Snapshot.Nodes) == 4 {
			stop()
		}
	})
	if s.lists.Load() != 1 || len(f.Table.Snapshot().Nodes) != 4 {
		t.Errorf("%d lists, %+v", s.lists.Load(), f.Table.Snapshot().Nodes)
	}
}
