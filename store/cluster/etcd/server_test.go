package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/store/cluster/web"
	"github.com/cnibox/cnibox/test/await"
)

// startTLS starts etcd with certificates for both sides. The returned function makes a client's.
func startTLS(t *testing.T) (server *etcdtest.Server, certificate func(name string) *web.TLS) {
	t.Helper()
	ca := clustertest.NewAuthority(t)
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := ca.Server(t)
	certificate = func(name string) *web.TLS {
		own, ownKey := ca.Client(t, name)
		return &web.TLS{CAFile: file("ca", ca.PEM), CertFile: file(name+".cert", own), KeyFile: file(name+".key", ownKey)}
	}
	own, ownKey := ca.Client(t, "health")
	pair, err := tls.X509KeyPair(own, ownKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	health := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}
	server = etcdtest.StartWith(t, "https", health, "--cert-file", file("server", cert), "--key-file", file("server.key", key),
		"--trusted-ca-file", file("trusted", ca.PEM), "--client-cert-auth")
	return server, certificate
}

// Both sides need certificates. A client without one is refused.
func TestTLS(t *testing.T) {
	server, certificate := startTLS(t)
	files := certificate("agent")
	r := open(t, Options{Endpoints: []string{server.URL}, TLS: files})
	admin{t, r.c}.put(DefaultPrefix+"/config", article, 0)
	if _, err := r.Acquire(t.Context(), node(1)); err != nil {
		t.Fatal(err)
	}
	follow(t, r)(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
	for what, stranger := range map[string]*web.TLS{"no certificate": {CAFile: files.CAFile}, "the system's roots": nil} {
		if _, err := configOf(t.Context(), open(t, Options{Endpoints: []string{server.URL}, TLS: stranger})); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// With etcd's authentication its gateway refuses certificates with a CommonName, also beside a user, in its own words. A
// user beside a certificate without one works. While authentication is off, a user is only a warning.
func TestCommonName(t *testing.T) {
	server, certificate := startTLS(t)
	setup := admin{t, open(t, Options{Endpoints: []string{server.URL}, TLS: certificate("admin")}).c}
	setup.put(DefaultPrefix+"/config", article, 0)
	var warnings []string
	plain := open(t, Options{Endpoints: []string{server.URL}, TLS: certificate(""), Username: "root", Password: "secret", Warn: func(s string) { warnings = append(warnings, s) }})
	for i := range 2 {
		if _, err := plain.Acquire(t.Context(), node(i)); err != nil {
			t.Fatalf("without authentication: %v", err)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "authentication is not enabled") {
		t.Errorf("warnings %q", warnings)
	}
	setup.do("/v3/auth/user/add", map[string]string{"name": "root", "password": "secret"}, &struct{}{})
	setup.do("/v3/auth/role/add", map[string]string{"name": "root"}, &struct{}{})
	setup.do("/v3/auth/user/grant", map[string]string{"user": "root", "role": "root"}, &struct{}{})
	setup.do("/v3/auth/enable", struct{}{}, &struct{}{})
	if _, err := configOf(t.Context(), plain); err != nil {
		t.Errorf("after authentication was turned on: %v", err)
	}
	for _, user := range []string{"", "root"} {
		o := Options{Endpoints: []string{server.URL}, TLS: certificate("root"), Username: user, Password: strings.Repeat("secret", len(user)/4)}
		_, err := configOf(t.Context(), open(t, o))
		if !errors.Is(err, cluster.ErrUnavailable) || !strings.Contains(err.Error(), "HTTP status 400: CommonName of client sending a request") {
			t.Errorf("a CommonName, user %q: %v", user, err)
		}
	}
	follow(t, open(t, Options{Endpoints: []string{server.URL}, TLS: certificate(""), Username: "root", Password: "secret"}))(func(s *cluster.Snapshot) bool { return len(s.Nodes) > 0 })
}

// With etcd's authentication a wrong password is refused, and calls and watches replace an expired
// token.
func TestPassword(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	a.do("/v3/auth/user/add", map[string]string{"name": "root", "password": "secret"}, &struct{}{})
	a.do("/v3/auth/role/add", map[string]string{"name": "root"}, &struct{}{})
	a.do("/v3/auth/user/grant", map[string]string{"user": "root", "role": "root"}, &struct{}{})
	a.do("/v3/auth/enable", struct{}{}, &struct{}{})
	if _, err := configOf(t.Context(), open(t, Options{Endpoints: []string{server.URL}})); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("without a password: %v", err)
	}
	if _, err := configOf(t.Context(), open(t, Options{Endpoints: []string{server.URL}, Username: "root", Password: "guess"})); !errors.Is(err, cluster.ErrUnavailable) || strings.Contains(err.Error(), "guess") {
		t.Errorf("with a wrong one: %v", err)
	}
	r := open(t, Options{Endpoints: []string{server.URL}, Username: "root", Password: "secret"})
	if _, err := r.Acquire(t.Context(), node(1)); err != nil {
		t.Fatal(err)
	}
	// etcd keeps these tokens in memory and loses them at a restart.
	server.Kill()
	server.Up(t)
	if _, err := configOf(t.Context(), r); err != nil {
		t.Errorf("after the token ended: %v", err)
	}
	server.Kill()
	server.Up(t)
	follow(t, r)(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
}

// The client works while one of several servers answers.
func TestSeveralServers(t *testing.T) {
	server := etcdtest.Start(t)
	newAdmin(t, server.URL).put(DefaultPrefix+"/config", article, 0)
	for range 5 { // the first server is chosen at random
		r := open(t, Options{Endpoints: []string{"http://127.0.0.1:1", server.URL, "http://127.0.0.1:2"}})
		if _, err := r.Acquire(t.Context(), node(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := configOf(t.Context(), open(t, Options{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}})); !errors.Is(err, cluster.ErrUnavailable) ||
		!strings.Contains(err.Error(), ":1") || !strings.Contains(err.Error(), ":2") {
		t.Errorf("none answers: %v", err)
	}
}

// A server without a leader answers but has no new data. It reports that, and the
// watch continues once there is a leader.
func TestLeaderLost(t *testing.T) {
	servers := etcdtest.StartCluster(t, 3)
	r := open(t, Options{Endpoints: []string{servers[0].URL}})
	a := admin{t, r.c}
	a.put(DefaultPrefix+"/config", article, 0)
	updates := make(chan cluster.Update)
	go func() {
		_ = clustertest.Watch(t.Context(), r.Watch, func(u cluster.Update) {
			select {
			case updates <- u:
			case <-t.Context().Done():
			}
		})
	}()
	if u := <-updates; u.Snapshot == nil {
		t.Fatal(u.Err)
	}
	servers[1].Kill()
	servers[2].Kill()
	u := <-updates
	if !errors.Is(u.Err, cluster.ErrUnavailable) || !strings.Contains(u.Err.Error(), "leader") {
		t.Fatalf("%v", u.Err)
	}
	servers[1].Up(t)
	servers[2].Up(t)
	for u = range updates {
		if u.Snapshot != nil {
			break
		}
	}
	if _, err := r.Acquire(t.Context(), node(1)); err != nil {
		t.Fatal(err)
	}
	for u = range updates {
		if u.Snapshot != nil && len(u.Snapshot.Nodes) == 1 {
			break
		}
	}
}

// A stopped server accepts requests and does not answer.
func TestStopped(t *testing.T) {
	server := etcdtest.Start(t)
	r := open(t, Options{Endpoints: []string{server.URL}})
	admin{t, r.c}.put(DefaultPrefix+"/config", article, 0)
	server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := configOf(ctx, r); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatal(err)
	}
}

// Watch reports a server that stops, although the connection stays open.
func TestStoppedWatch(t *testing.T) {
	server := etcdtest.Start(t)
	r := open(t, Options{Endpoints: []string{server.URL}})
	admin{t, r.c}.put(DefaultPrefix+"/config", article, 0)
	updates := make(chan cluster.Update)
	go func() {
		_ = clustertest.Watch(t.Context(), r.Watch, func(u cluster.Update) {
			select {
			case updates <- u:
			case <-t.Context().Done():
			}
		})
	}()
	if u := await.Next(t, updates, "the snapshot"); u.Snapshot == nil {
		t.Fatal(u.Err)
	}
	server.Stop(t)
	if u := await.Next(t, updates, "the error"); !errors.Is(u.Err, cluster.ErrUnavailable) || !strings.Contains(u.Err.Error(), "etcd does not answer") {
		t.Fatal(u.Err)
	}
}

// Many records are read in pages, fast and with little memory.
func TestManyLeases(t *testing.T) {
	const count = 10_000
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", `{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`, 0)
	lease := a.grant(86400)
	for i := 0; i < count; {
		var t txnRequest
		for range 100 {
			n := node(i)
			n.Name = fmt.Sprintf("10.%d.%d.0-24", 1+i>>8, i&255)
			value, err := encode(&n)
			if err != nil {
				a.tb.Fatal(err)
			}
			t.Success = append(t.Success, operation{Put: &putRequest{Key: []byte(DefaultPrefix + "/subnets/" + n.Name), Value: value, Lease: lease}})
			i++
		}
		a.do("/v3/kv/txn", t, &txnResponse{})
	}
	r := open(t, Options{Endpoints: []string{server.URL}})
	before := resident(t)
	since := time.Now()
	seen := follow(t, r)
	s := seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == count })
	took := time.Since(since)
	t.Logf("%d leases: %v, %d MB more resident", count, took, (resident(t)-before)>>20)
	since = time.Now()
	a.put(DefaultPrefix+"/subnets/10.1.0.0-24", `{"PublicIP":"192.0.2.200"}`, 0)
	seen(func(s *cluster.Snapshot) bool { return s.Nodes[0].PublicIP.As4()[3] == 200 })
	t.Logf("one change: %v", time.Since(since))
	runtime.KeepAlive(s)
}

// resident returns the process's memory.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// configOf reads the configuration, as a request of a client.
func configOf(ctx context.Context, r *Registry) (*cluster.Config, error) {
	kv, err := r.c.get(ctx, r.configKey())
	if err != nil {
		return nil, err
	}
	c, _, err := cluster.ParseSubnetConfig(kv.Value)
	return c, err
}
