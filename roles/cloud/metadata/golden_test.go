package metadata

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txtar")

// Every file is a cloud: "provider" is its name, "own" lists the addresses of the node's
// links, "GET PATH" is the cloud's answer for a path (other paths answer 404), and "want"
// is the normalised reply. The values are invented, the shapes are documented.
func TestGolden(t *testing.T) {
	clustertest.Loopback(t)
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 14 {
		t.Fatalf("testdata: %d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			have := []byte(query(t, a))
			i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
			if *update {
				a.Files[i].Data = have
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(a.Files[i].Data), string(have)); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
}

// query serves an archive and requests its metadata.
func query(t *testing.T, a *txtar.Archive) string {
	t.Helper()
	section := map[string]string{}
	for _, f := range a.Files {
		section[f.Name] = strings.TrimSuffix(string(f.Data), "\n")
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve(w, r, section)
	}))
	defer srv.Close()
	q := Query{URL: srv.URL}
	for _, s := range strings.Fields(section["own"]) {
		q.Own = append(q.Own, netip.MustParseAddr(s))
	}
	if content, ok := section["file"]; ok {
		q.File = filepath.Join(t.TempDir(), "interfaces.json")
		if err := os.WriteFile(q.File, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, ok := Lookup(section["provider"])
	if !ok {
		t.Fatalf("no provider %q", section["provider"])
	}
	reply, err := p.Fetch(t.Context(), q)
	out := ""
	if reply != nil {
		b, jsonErr := json.MarshalIndent(reply, "", " ")
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		out = string(b) + "\n"
	}
	if err != nil {
		out += "error: " + strings.NewReplacer(srv.URL, "http://CLOUD", filepath.Dir(q.File), "DIR").Replace(err.Error()) + "\n"
	}
	return out
}

// serve requires the same headers as the clouds do.
func serve(w http.ResponseWriter, r *http.Request, section map[string]string) {
	for header, want := range map[string]string{
		"aws": "X-Aws-Ec2-Metadata-Token", "alibaba": "X-Aliyun-Ecs-Metadata-Token",
	} {
		if section["provider"] != header {
			continue
		}
		if r.URL.Path == "/latest/api/token" {
			if r.Method != http.MethodPut || r.Header.Get(want+"-Ttl-Seconds") == "" {
				http.Error(w, "", http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, "t0ken==")
			return
		}
		if r.Header.Get(want) != "t0ken==" {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
	}
	required := map[string][2]string{
		"azure-imds": {"Metadata", "true"}, "gcp": {"Metadata-Flavor", "Google"}, "oracle": {"Authorization", "Bearer Oracle"},
	}
	if h, ok := required[section["provider"]]; ok {
		if r.Header.Get(h[0]) != h[1] {
			http.Error(w, "", http.StatusForbidden)
			return
		}
		w.Header().Set(h[0], h[1])
	}
	body, ok := section["GET "+r.URL.RequestURI()]
	if !ok || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	if status, rest, ok := strings.Cut(body, "!"); ok && rest == "" {
		code := 0
		fmt.Sscan(status, &code)
		w.WriteHeader(code)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprint(w, body)
}
