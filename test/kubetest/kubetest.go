// Package kubetest runs a real kube-apiserver on a real etcd for tests.
//
// `make test-kube` builds the API server and a current etcd into bin/kube; the other etcd is Debian's etcd-server. Tests that need
// them have the build tag kube, so that no test is skipped.
package kubetest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/port"
)

// Tokens of the server's users. Admin has all rights. Agent is in the group "agents" and has the rights that Server.Allow gives.
const (
	Admin = "admin-token"
	Agent = "agent-token"
)

// Server is an API server and its store. It listens on the loopback interface.
type Server struct {
	// Address is host:port of the API server, Etcd the URL of its store.
	Address, Etcd string
	// CA is the PEM of the authority that signed its certificate.
	CA []byte

	dir  string
	pki  *authority
	http *http.Client

	etcd, api *program
}

// program is a running program.
type program struct {
	*exec.Cmd
	// ended is closed when it has ended, with err.
	ended chan struct{}
	err   error
}

// kill ends a program and waits for its end.
func (p *program) kill() {
	if p == nil {
		return
	}
	_ = p.Process.Kill()
	<-p.ended
}

// Store selects the etcd of the server.
type Store int

// The first cannot report its progress, so that the server has no streaming lists; the second can.
const (
	DebianEtcd Store = iota
	CurrentEtcd
)

// Main runs a package's tests with one server that all of them share. TestMain calls it; it returns the exit code.
func Main(m *testing.M, store Store, use func(*Server)) int {
	s, err := Start(store)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	defer s.Stop()
	use(s)
	return m.Run()
}

// Start starts both programs and waits until the server is ready.
func Start(store Store) (s *Server, err error) {
	if err := loopback(); err != nil {
		return nil, err
	}
	s = &Server{}
	s.dir, err = os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	s.pki, err = newAuthority()
	if err != nil {
		return nil, err
	}
	s.CA = s.pki.pem
	if err := s.files(); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	s.http = &http.Client{Timeout: await.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	if err := s.startEtcd(store); err != nil {
		return nil, err
	}
	secure, err := port.Free()
	if err != nil {
		return nil, err
	}
	s.Address = fmt.Sprintf("127.0.0.1:%d", secure)
	return s, s.StartAPI()
}

// files writes the files that the server is started with.
func (s *Server) files() error {
	cert, key, err := s.pki.Server("127.0.0.1")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": s.CA, "server.crt": cert, "server.key": key, "sa.key": key,
		"tokens.csv": fmt.Appendf(nil, "%s,admin,1,system:masters\n%s,agent,2,agents\n", Admin, Agent),
	} {
		if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) startEtcd(store Store) error {
	path := "/usr/bin/etcd"
	if store == CurrentEtcd {
		path = Built("etcd")
	}
	client, err := port.Free()
	if err != nil {
		return err
	}
	peer, err := port.Free()
	if err != nil {
		return err
	}
	s.Etcd = fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	s.etcd, err = s.start("etcd", path, "--data-dir", s.file("etcd"), "--listen-client-urls", s.Etcd, "--advertise-client-urls", s.Etcd,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL, "--unsafe-no-fsync")
	return err
}

// StartAPI starts the API server, again after StopAPI.
func (s *Server) StartAPI() (err error) {
	host, port, _ := net.SplitHostPort(s.Address)
	s.api, err = s.start("kube-apiserver", Built("kube-apiserver"), "--etcd-servers", s.Etcd, "--bind-address", host, "--advertise-address", "192.0.2.1", "--secure-port", port,
		"--tls-cert-file", s.file("server.crt"), "--tls-private-key-file", s.file("server.key"), "--client-ca-file", s.file("ca.crt"),
		"--token-auth-file", s.file("tokens.csv"), "--service-account-key-file", s.file("sa.key"), "--service-account-signing-key-file", s.file("sa.key"),
		"--service-account-issuer", "https://kubetest", "--authorization-mode", "Node,RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
		"--disable-admission-plugins", "ServiceAccount", "--cert-dir", s.file("certs"))
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(await.Patience)
	for {
		if _, err = s.Do(http.MethodGet, "/readyz", "", nil); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.api.ended:
			return fmt.Errorf("kube-apiserver ended: %w\n%s", s.api.err, s.log("kube-apiserver"))
		case <-deadline:
			return fmt.Errorf("kube-apiserver is not ready: %w\n%s", err, s.log("kube-apiserver"))
		}
	}
}

// StopAPI kills the API server; its etcd continues.
func (s *Server) StopAPI() {
	s.api.kill()
}

// StartManager starts kube-controller-manager with the administrator's rights. stop kills it.
func (s *Server) StartManager(tb testing.TB, flags ...string) (stop func()) {
	tb.Helper()
	p, err := s.start("kube-controller-manager", Built("kube-controller-manager"),
		append([]string{"--kubeconfig", s.Kubeconfig(tb, s.Address, Admin), "--secure-port", "0", "--leader-elect=false"}, flags...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.kill()
		if tb.Failed() {
			tb.Logf("kube-controller-manager: %s", s.log("kube-controller-manager"))
		}
	})
	return p.kill
}

// ProcessID returns the process ID of the API server.
func (s *Server) ProcessID() int { return s.api.Process.Pid }

// Stop kills both programs and removes their files.
func (s *Server) Stop() {
	s.api.kill()
	s.etcd.kill()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) start(name, path string, args ...string) (*program, error) {
	log, err := os.Create(s.file(name + ".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c := exec.Command(path, args...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("%w: make test-kube builds and installs it", err)
	}
	p := &program{Cmd: c, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.err = c.Wait()
	}()
	return p, nil
}

// log returns the end of a program's output.
func (s *Server) log(name string) []byte {
	b, _ := os.ReadFile(s.file(name + ".log"))
	return b[max(0, len(b)-4000):]
}

// Built returns the path of a program in bin/kube of the repository that the test runs in.
func Built(name string) string {
	dir, _ := os.Getwd()
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "bin", "kube", name)
}

// loopback brings lo up; in a new network namespace it is down.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Do sends a request as the administrator and returns the reply's body. kind is
// the body's content type; "" is application/json.
func (s *Server) Do(method, path, kind string, body any) ([]byte, error) {
	b, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequest(method, "https://"+s.Address+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if kind == "" {
		kind = "application/json"
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+Admin)
	resp, err := s.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = &Refused{resp.StatusCode, string(out)}
	}
	return out, err
}

// Refused is a reply with an error status.
type Refused struct {
	Code int
	Body string
}

func (e *Refused) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Body) }

// Must is Do that fails the test on an error; want lists further status codes that are accepted.
func (s *Server) Must(tb testing.TB, method, path, kind string, body any, want ...int) []byte {
	tb.Helper()
	out, err := s.Do(method, path, kind, body)
	var refused *Refused
	if errors.As(err, &refused) {
		for _, code := range want {
			if refused.Code == code {
				return out
			}
		}
	}
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return out
}

// Compact drops the store's history, so that no watch can resume from an earlier version.
func (s *Server) Compact(tb testing.TB) {
	tb.Helper()
	post := func(path, body string, v any) {
		tb.Helper()
		resp, err := http.Post(s.Etcd+path, "application/json", strings.NewReader(body))
		if err != nil {
			tb.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			tb.Fatal(err)
		}
	}
	var now struct {
		Header struct{ Revision string }
	}
	post("/v3/kv/range", `{"key":"AA=="}`, &now)
	post("/v3/kv/compaction", `{"revision":"`+now.Header.Revision+`","physical":true}`, &struct{}{})
}
