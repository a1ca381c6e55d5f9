package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Allow permits the group "agents" verbs on resources such as "nodes/status".
func (s *Server) Allow(tb testing.TB, name string, rules ...Rule) {
	tb.Helper()
	meta := map[string]any{"name": name}
	s.Must(tb, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", "", map[string]any{"metadata": meta, "rules": rules}, http.StatusConflict)
	s.Must(tb, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "", map[string]any{
		"metadata": meta, "roleRef": map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
		"subjects": []map[string]string{{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "agents"}, {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}},
	}, http.StatusConflict)
}

// Rule is a PolicyRule of RBAC.
type Rule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Names     []string `json:"resourceNames,omitempty"`
	Verbs     []string `json:"verbs"`
}

// WithoutEachRight takes each right, a verb of a resource, in turn from the roles that lists at the paths have, and
// calls f without it.
func (s *Server) WithoutEachRight(tb testing.TB, paths []string, f func(resource, verb string)) {
	tb.Helper()
	rights := 0
	for _, path := range paths {
		var roles struct {
			Items []struct {
				Metadata struct{ Name string }
				Rules    []Rule
			}
		}
		if err := json.Unmarshal(s.Must(tb, http.MethodGet, path, "", nil), &roles); err != nil {
			tb.Fatal(err)
		}
		collection, _, _ := strings.Cut(path, "?")
		for _, role := range roles.Items {
			set := func(rules []Rule) {
				s.Must(tb, http.MethodPatch, collection+"/"+role.Metadata.Name, "application/merge-patch+json", map[string]any{"rules": rules})
			}
			var single []Rule
			for _, rule := range role.Rules {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						single = append(single, Rule{rule.APIGroups, []string{resource}, rule.Names, []string{verb}})
					}
				}
			}
			for i, right := range single {
				set(slices.Delete(slices.Clone(single), i, i+1))
				f(right.Resources[0], right.Verbs[0])
			}
			set(role.Rules)
			rights += len(single)
		}
	}
	if rights == 0 {
		tb.Errorf("no role has a right: %v", paths)
	}
}

// Allowed reports whether the server grants a user a right, the attributes of a SubjectAccessReview.
func (s *Server) Allowed(tb testing.TB, user string, attributes map[string]string) bool {
	tb.Helper()
	var is struct{ Status struct{ Allowed bool } }
	review := map[string]any{"spec": map[string]any{"user": user, "resourceAttributes": attributes}}
	if err := json.Unmarshal(s.Must(tb, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", review), &is); err != nil {
		tb.Fatal(err)
	}
	return is.Status.Allowed
}

// Kubeconfig writes a kubeconfig file with a token and an address, which is the server's or a Wire's.
func (s *Server) Kubeconfig(tb testing.TB, address, token string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	content := strings.NewReplacer("ADDRESS", address, "CADATA", base64.StdEncoding.EncodeToString(s.CA), "TOKEN", token).Replace(`apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: https://ADDRESS
    certificate-authority-data: CADATA
users:
- name: test
  user:
    token: TOKEN
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// ClientCertificate signs a certificate for a user in groups: a common name and organisations.
func (s *Server) ClientCertificate(tb testing.TB, user string, groups ...string) (cert, key []byte) {
	tb.Helper()
	cert, key, err := s.pki.Client(user, groups...)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key
}

// ServiceAccount makes a service account of the namespace default and returns a
// token for it; the token ends with the account, which remove deletes.
func (s *Server) ServiceAccount(tb testing.TB, name string) (token string, remove func()) {
	tb.Helper()
	s.Must(tb, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "default"}}, http.StatusConflict)
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	s.Must(tb, http.MethodPost, accounts, "", map[string]any{"metadata": map[string]any{"name": name}})
	return s.Token(tb, "default", name), func() { tb.Helper(); s.Must(tb, http.MethodDelete, accounts+"/"+name, "", nil) }
}

// Token requests a token of a service account.
func (s *Server) Token(tb testing.TB, namespace, account string) string {
	tb.Helper()
	var reply struct{ Status struct{ Token string } }
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + account + "/token"
	if err := json.Unmarshal(s.Must(tb, http.MethodPost, path, "", map[string]any{"spec": map[string]any{}}), &reply); err != nil {
		tb.Fatal(err)
	}
	return reply.Status.Token
}

// Kubectl runs kubectl as the administrator and returns its output.
func (s *Server) Kubectl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := exec.Command(Built("kubectl"), append([]string{"--kubeconfig", s.Kubeconfig(tb, s.Address, Admin)}, args...)...).CombinedOutput()
	if err != nil {
		tb.Fatalf("kubectl %q: %v: %s", args, err, out)
	}
	return string(out)
}
