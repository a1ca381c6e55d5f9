package dhcp_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestSecondDaemon: a socket can have only one daemon.
func TestSecondDaemon(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	cmd := e.Cmd(rolestest.Call{Type: "dhcp"})
	cmd.Args = append(cmd.Args, "daemon", "-socketpath", socketOf(e))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "a daemon runs already, process ") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestActivation: a service manager can pass the socket (LISTEN_FDS). The daemon does not remove it.
func TestActivation(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	path := filepath.Join(e.Dir(), "passed.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	must(t, err)
	defer f.Close()
	call := e.Cmd(rolestest.Call{Type: "dhcp"})
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" daemon -pidfile "$1"`, call.Path, filepath.Join(e.Dir(), "pid"))
	cmd.Env, cmd.ExtraFiles = append(call.Env, "CNIBOX_LOG=info"), []*os.File{f}
	d := start(t, nil, cmd)
	d.await(t, "listening", 1)
	status := rolestest.Call{Type: "dhcp", Verb: "STATUS", Conf: `{"cniVersion":"1.1.0","name":"n","ipam":{"daemonSocketPath":"` + path + `"}}`}
	e.OK(status)
	if pid, err := os.ReadFile(filepath.Join(e.Dir(), "pid")); err != nil || string(pid) != fmt.Sprint(cmd.Process.Pid) {
		t.Errorf("pid file %q, %v", pid, err)
	}
	d.stop(t)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(e.Dir(), "pid")); !os.IsNotExist(err) {
		t.Errorf("pid file: %v", err)
	}
}

// TestOtherUsers: only root's calls are answered, even if every user can connect to the socket.
func TestOtherUsers(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	d := daemonAt(t, e, "/run/others/dhcp.sock")
	must(t, os.Chmod("/run/others", 0o755))
	must(t, os.Chmod("/run/others/dhcp.sock", 0o666))
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		refused <- asNobody("/run/others/dhcp.sock")
	}()
	must(t, <-refused)
	d.await(t, "user 65534", 1)
}

// asNobody connects as user nobody, and returns nil if the daemon closes the connection.
func asNobody(socket string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
		return errno
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return err
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n != 0 || err != nil {
		return fmt.Errorf("read %d bytes: %w", n, err)
	}
	return nil
}

// TestFlags: all invalid flags are reported at once.
func TestFlags(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	for args, want := range map[string]string{
		"-pidfile x -socketpath y -timeout 0s": `-pidfile: "x" is not an absolute path; -socketpath: "y" is not an absolute path; -timeout: 0s is not positive`,
		"more":                                 `"more" is not a flag`,
		"-nothing":                             "flag provided but not defined: -nothing",
	} {
		cmd := e.Cmd(rolestest.Call{Type: "dhcp"})
		cmd.Args = append(append(cmd.Args, "daemon"), strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: the daemon ran", args)
		}
		for part := range strings.SplitSeq(want, "; ") {
			if !strings.Contains(string(out), part) {
				t.Errorf("%s: %q is missing %q", args, out, part)
			}
		}
	}
}
