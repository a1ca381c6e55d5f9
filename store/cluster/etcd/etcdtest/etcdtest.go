// Package etcdtest runs a real etcd for tests.
package etcdtest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/port"
)

// Server is an etcd process, which a test may stop and start again.
type Server struct {
	// URL is the address for clients.
	URL string
	// Data is the directory of its data.
	Data string
	args []string
	log  string
	cmd  *exec.Cmd
	// client can request its health.
	client *http.Client
}

// Start runs etcd in memory, reachable through plain HTTP. args are appended to its
// flags and can override them.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartWith(tb, "http", http.DefaultClient, args...)
}

// StartWith is Start for another scheme, with a client that can request its health.
func StartWith(tb testing.TB, scheme string, client *http.Client, args ...string) *Server {
	tb.Helper()
	s := members(tb, 1, scheme, client, args...)[0]
	s.Up(tb)
	return s
}

// StartCluster runs several members of one etcd.
func StartCluster(tb testing.TB, count int) []*Server {
	tb.Helper()
	// Longer intervals keep the leader when the machine is busy for a moment.
	servers := members(tb, count, "http", http.DefaultClient, "--heartbeat-interval", "200", "--election-timeout", "3000")
	for _, s := range servers {
		s.run(tb)
	}
	for _, s := range servers {
		s.wait(tb)
	}
	return servers
}

func members(tb testing.TB, count int, scheme string, client *http.Client, args ...string) []*Server {
	tb.Helper()
	clustertest.Loopback(tb)
	// A file system in memory, because etcd syncs each write.
	dir, err := os.MkdirTemp("/dev/shm", "etcdtest-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	servers, peers, all := make([]*Server, count), make([]string, count), []string(nil)
	for i := range servers {
		peers[i] = fmt.Sprintf("http://127.0.0.1:%d", free(tb))
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range servers {
		name := fmt.Sprintf("m%d", i)
		s := &Server{Data: filepath.Join(dir, name), URL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, free(tb)), log: filepath.Join(dir, name+".log"), client: client}
		s.args = append([]string{
			"--name", name, "--data-dir", s.Data, "--listen-client-urls", s.URL, "--advertise-client-urls", s.URL,
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(all, ","),
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}, args...)
		tb.Cleanup(s.Kill)
		servers[i] = s
	}
	return servers
}

// Up starts the server with its existing data and waits until it answers.
func (s *Server) Up(tb testing.TB) {
	tb.Helper()
	s.run(tb)
	s.wait(tb)
}

func (s *Server) run(tb testing.TB) {
	tb.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command("etcd", s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		tb.Fatalf("start etcd: %v (make setup installs it)", err)
	}
}

// wait waits until the server answers.
func (s *Server) wait(tb testing.TB) {
	tb.Helper()
	await.Until(tb, func() bool {
		resp, err := s.client.Get(s.URL + "/health")
		if err != nil {
			return false
		}
		var b bytes.Buffer
		_, _ = b.ReadFrom(resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, func() string {
		said, _ := os.ReadFile(s.log)
		return fmt.Sprintf("etcd does not answer:\n%s", said)
	})
	s.client.CloseIdleConnections()
}

// Kill kills the server.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Stop stops the process, with its connections open, until the test ends or the
// server is killed. It returns when the process has stopped.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		tb.Fatal(err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(s.cmd.Process.Pid, &ws, unix.WUNTRACED, nil); err != nil || !ws.Stopped() {
		tb.Fatalf("etcd was not stopped: %v, %v", ws, err)
	}
}

// Continue continues a stopped process.
func (s *Server) Continue(tb testing.TB) {
	tb.Helper()
	if err := s.cmd.Process.Signal(unix.SIGCONT); err != nil {
		tb.Fatal(err)
	}
}

// free returns an unused port.
func free(tb testing.TB) int {
	tb.Helper()
	n, err := port.Free()
	if err != nil {
		tb.Fatal(err)
	}
	return n
}
