package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// TestForeignRanges: a pool of whereabouts has the range that whereabouts reads. One whose range whereabouts cannot read has those
// that its name may say, if it has allocations, and does not hide other pools.
func TestForeignRanges(t *testing.T) {
	const used = `{"1":{"id":"c","podref":"ns/pod"}}`
	for _, c := range []struct {
		name, spec, allocations, annotations string
		ranges                               []string // without that of the healthy pool
		fault                                bool
	}{
		{"10.0.0.0-24", "10.0.0.0/24", `{}`, `{}`, []string{"10.0.0.0/24"}, false},
		{"10.0.0.0-24", "::ffff:10.0.0.9/120", `{}`, `{}`, []string{"10.0.0.0/24"}, false},
		{"10.0.0.0-24", "10.0.0.0/024", `{}`, `{}`, []string{"10.0.0.0/24"}, false},
		{"10.0.0.0-24", "x", `{}`, `{}`, []string{"invalid Prefix"}, true},
		{"10.0.0.0-24", "", used, `{}`, []string{"10.0.0.0/24", "invalid Prefix"}, true},
		{"red-lan-10.0.0.0-24", "x", used, `{}`, []string{"10.0.0.0/24", "invalid Prefix"}, true},
		{"fd00-db8---64", "x", used, `{}`, []string{"db8::/64", "fd00:db8::/64", "invalid Prefix"}, true},
		{"red-lan", "x", used, `{}`, []string{"invalid Prefix"}, true},
		{"red-10.0.0.0-240", "x", used, `{}`, []string{"invalid Prefix"}, true},
		{"10.0.0.0-24", takenRange, `{}`, `{"cnibox.io/range-returns":"true"}`, []string{"10.0.0.0/24", "invalid Prefix"}, true},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"namespace":"kube-system","name":%q,"annotations":%s},"spec":{"range":%q,"allocations":%s}},
				{"metadata":{"namespace":"kube-system","name":"10.9.0.0-24"},"spec":{"range":"10.9.0.0/24"}}]}`, c.name, c.annotations, c.spec, c.allocations)
		}))
		t.Cleanup(srv.Close)
		client, err := rest.Open(rest.Server(srv.URL))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		r, err := Open(Options{Client: client, Node: "a", Config: &cluster.Config{}})
		if err != nil {
			t.Fatal(err)
		}
		all, err := r.ForeignRanges(t.Context())
		if err != nil || len(all) == 0 || all[len(all)-1].Range.String() != "10.9.0.0/24" {
			t.Errorf("%s %q: %v, %v", c.name, c.spec, all, err)
			continue
		}
		var got []string
		for _, f := range all[:len(all)-1] {
			got = append(got, f.Range.String())
			if (f.Fault != nil) != c.fault {
				t.Errorf("%s %q: %v", c.name, c.spec, f.Fault)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.ranges) {
			t.Errorf("%s %q: %v", c.name, c.spec, got)
		}
	}
}
