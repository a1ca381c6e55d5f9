package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// TestPolicies: the policies of a namespace select pods by their labels.
func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		name, selector, labels string
		selects                bool
	}{
		{"all pods", `{}`, `{"app":"web"}`, true},
		{"a label", `{"matchLabels":{"app":"web"}}`, `{"app":"web","x":"y"}`, true},
		{"another value", `{"matchLabels":{"app":"web"}}`, `{"app":"db"}`, false},
		{"an absent label", `{"matchLabels":{"app":""}}`, `{}`, false},
		{"in", `{"matchExpressions":[{"key":"app","operator":"In","values":["db","web"]}]}`, `{"app":"web"}`, true},
		{"in, absent", `{"matchExpressions":[{"key":"app","operator":"In","values":[""]}]}`, `{}`, false},
		{"not in", `{"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}`, `{"app":"web"}`, false},
		{"not in, absent", `{"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}`, `{}`, true},
		{"exists", `{"matchExpressions":[{"key":"app","operator":"Exists"}]}`, `{"app":""}`, true},
		{"does not exist", `{"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}`, `{"app":""}`, false},
		{"both", `{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"app","operator":"Exists"}]}`, `{"a":"b"}`, false},
		{"an unknown operator", `{"matchExpressions":[{"key":"app","operator":"Like"}]}`, `{"app":"web"}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			items := map[string]string{
				"/apis/networking.k8s.io/v1/networkpolicies": fmt.Sprintf(`{"metadata":{"namespace":"one","name":"p"},"spec":{"podSelector":%s}},
					{"metadata":{"namespace":"two","name":"q"},"spec":{"podSelector":{}}}`, c.selector),
				"/api/v1/pods": fmt.Sprintf(`{"metadata":{"namespace":"one","name":"a","labels":%s},"spec":{}},
					{"metadata":{"namespace":"two","name":"b"},"spec":{"hostNetwork":true}}`, c.labels),
			}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("fieldSelector") != "spec.nodeName=node-1" {
					t.Errorf("pods of %q are requested", r.URL.RawQuery)
				}
				list := `{"metadata":{"resourceVersion":"1"},"items":[` + items[r.URL.Path] + `]}`
				if !json.Valid([]byte(list)) {
					t.Errorf("the test sends %s", list)
				}
				fmt.Fprint(w, list)
			}))
			defer srv.Close()
			client, err := rest.Open(rest.Server(srv.URL))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			got, err := (&Registry{client: client, name: "node-1"}).Policies(t.Context())
			var want []string
			if c.selects {
				want = []string{"one/p"}
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		})
	}
}
