// Package etcdtest runs a real etcd for tests.
package etcdtest

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// Server is one etcd process, which a test may stop and start again.
type Server struct {
	// URL is where clients find it.
	URL string
	// Data is the directory that it keeps its data in.
	Data string
	args []string
	log  string
	cmd  *exec.Cmd
	// client may ask whether it answers.
	client *http.Client
}

// Start runs etcd in memory, reachable through plain HTTP; args are added, and
// may replace that.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartWith(tb, "http", http.DefaultClient, args...)
}

// StartWith is Start for another scheme, and a client that may ask for its health.
func StartWith(tb testing.TB, scheme string, client *http.Client, args ...string) *Server {
	tb.Helper()
	s := members(tb, 1, scheme, client, args...)[0]
	s.Up(tb)
	return s
}

// StartCluster runs several servers of one etcd.
func StartCluster(tb testing.TB, count int) []*Server {
	tb.Helper()
	servers := members(tb, count, "http", http.DefaultClient)
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
	// The file system in memory: etcd syncs each write.
	dir, err := os.MkdirTemp("/dev/shm", "etcdtest-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	servers, peers, all := make([]*Server, count), make([]string, count), []string(nil)
	for i := range servers {
		peers[i] = fmt.Sprintf("http://127.0.0.1:%d", port(tb))
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range servers {
		name := fmt.Sprintf("m%d", i)
		s := &Server{Data: filepath.Join(dir, name), URL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, port(tb)), log: filepath.Join(dir, name+".log"), client: client}
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

// Up starts it, again with the same data, and waits until it answers.
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

// wait waits until it answers.
func (s *Server) wait(tb testing.TB) {
	tb.Helper()
	deadline := time.After(30 * time.Second)
	for retry := time.NewTicker(20 * time.Millisecond); ; {
		resp, err := s.client.Get(s.URL + "/health")
		if err == nil {
			var b bytes.Buffer
			_, _ = b.ReadFrom(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				retry.Stop()
				s.client.CloseIdleConnections()
				return
			}
		}
		select {
		case <-retry.C:
		case <-deadline:
			said, _ := os.ReadFile(s.log)
			tb.Fatalf("etcd does not answer: %v\n%s", err, said)
		}
	}
}

// Kill ends it at once.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Stop has it stand still, with its connections open, until the test ends or it
// is killed. It stands when Stop returns.
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

// port is a free one.
func port(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
