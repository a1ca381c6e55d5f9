package rest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// written returns a kubeconfig with these lines for the cluster and the user.
func written(cluster, user string) string {
	return `apiVersion: v1
kind: Config
preferences: {}
clusters:
- name: other
  cluster: {server: "https://192.0.2.9"}
- name: c
  cluster:
    ` + cluster + `
contexts:
- name: x
  context: {cluster: c, user: u, namespace: kube-system}
users:
- name: u
  user:
    ` + user + `
current-context: x
`
}

func TestKubeconfig(t *testing.T) {
	c, err := parseKubeconfig([]byte(written("server: https://192.0.2.1:6443/k8s\n    certificate-authority: pki/ca.crt\n    tls-server-name: kubernetes", "tokenFile: token\n    client-certificate-data: Y2VydA==\n    client-key: /etc/key")), "/etc/k")
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.String() != "https://192.0.2.1:6443/k8s" || c.TokenFile != "/etc/k/token" || c.TLS.CAFile != "/etc/k/pki/ca.crt" ||
		c.TLS.ServerName != "kubernetes" || string(c.TLS.Cert) != "cert" || c.TLS.CertFile != "" || c.TLS.KeyFile != "/etc/key" {
		t.Errorf("read as %+v", c)
	}
	// As JSON, without a user.
	c, err = parseKubeconfig([]byte(`{"current-context":"x","contexts":[{"name":"x","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:8080"}}]}`), "/")
	if err != nil || c.Server.Host != "127.0.0.1:8080" || c.Token != "" {
		t.Errorf("read as %+v, %v", c, err)
	}
}

// All faults are reported together.
func TestKubeconfigRefused(t *testing.T) {
	const server = "server: https://192.0.2.1:6443"
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"empty":            {"", []string{"current-context"}},
		"no YAML":          {"a: b: c", []string{"line 1"}},
		"a list":           {"- a", []string{"array"}},
		"no such context":  {"current-context: y", []string{`"y"`, "no such context"}},
		"no such cluster":  {strings.Replace(written(server, "token: t"), "cluster: c,", "cluster: d,", 1), []string{`contexts[0].context.cluster is "d"`}},
		"no such user":     {strings.Replace(written(server, "token: t"), "user: u,", "user: v,", 1), []string{`contexts[0].context.user is "v"`}},
		"no server":        {written("server: 192.0.2.1:6443", "token: t"), []string{"server", "https://host:port"}},
		"user in the URL":  {written("server: https://a:b@192.0.2.1", "token: t"), []string{"server"}},
		"insecure":         {written(server+"\n    insecure-skip-tls-verify: true", "token: t"), []string{"insecure-skip-tls-verify", "certificate-authority"}},
		"exec and a proxy": {written(server+"\n    proxy-url: http://proxy", "exec: {command: aws}"), []string{"proxy-url", "exec", "tokenFile"}},
		"auth-provider":    {written(server, "auth-provider: {name: gcp}"), []string{"auth-provider"}},
		"password":         {written(server, "username: a\n    password: b"), []string{"username and password"}},
		"impersonation":    {written(server, "as: admin"), []string{"as:"}},
		"bad base64":       {written(server, "client-certificate-data: '*'"), []string{"base64"}},
		"bad token":        {written(server, "token: \"a\\nb\""), []string{"token", "control characters"}},
	} {
		_, err := parseKubeconfig([]byte(c.file), "/")
		if !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q in it", name, err, want)
			}
		}
	}
}

// The content of the files is checked when the client is opened.
func TestOpenRefused(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("empty", "")
	for name, source := range map[string]Source{
		"no file":           Kubeconfig(filepath.Join(dir, "none")),
		"no CA":             Kubeconfig(put("k1", written("server: https://192.0.2.1\n    certificate-authority: none", "token: t"))),
		"no token":          Kubeconfig(put("k2", written("server: https://192.0.2.1", "tokenFile: none"))),
		"empty token":       Kubeconfig(put("k3", written("server: https://192.0.2.1", "tokenFile: empty"))),
		"no key":            Kubeconfig(put("k4", written("server: https://192.0.2.1", "client-certificate-data: Y2VydA=="))),
		"token over http":   Kubeconfig(put("k5", written("server: http://192.0.2.1", "token: t"))),
		"outside of a pod":  InCluster("", "", ServiceAccountDir),
		"a pod without one": InCluster("10.96.0.1", "443", dir),
		"no URL":            Server("192.0.2.1:8080"),
	} {
		if c, err := Open(source); err == nil {
			c.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(written("server: https://192.0.2.1:6443\n    certificate-authority-data: Y2VydA==", "token: t")))
	f.Add([]byte(written("server: http://[::1]:8080", "client-certificate: a\n    client-key: b")))
	f.Add([]byte(`{"current-context":"x","contexts":[{"name":"x","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"https://a"}}]}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := parseKubeconfig(file, "/dir")
		if err != nil {
			if !errors.Is(err, cluster.ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		if c.Server == nil || c.Server.Host == "" || c.TokenFile != "" && !filepath.IsAbs(c.TokenFile) || strings.ContainsAny(c.Token, "\r\n ") {
			t.Fatalf("%+v", c)
		}
	})
}
