// Package e2e runs real container runtimes with cnibox's links and checks what they leave behind.
//
// The tests need bin/cnibox and root. Each test makes its own host: new network, mount and process namespaces with empty /run and
// /var/lib, so that nothing of the machine is visible or changed, and everything ends with the host's first process. With
// CNIBOX_TEST_PLUGIN_DIR the same tests run on other plugins, such as the reference ones.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit bounds the time of every command, so that a hanging runtime becomes a failure with its log. Busybox's own limit, wget -T,
// crashes in Debian's static build.
const limit = 8 * time.Minute

// hostScript is the first process of a host. It makes the mounts private before anything is mounted, and lives until its standard
// input closes. It stays a shell because a shell reaps orphans.
const hostScript = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/lock /run/netns
ip link set lo up
echo ready
cat
exit 0`

// host is a simulated machine.
type host struct {
	pid    int
	bin    string // the directory of the CNI links
	conf   string // the directory of the network configuration
	dir    string // for files of the test
	cgroup string // the parent of the containers' cgroups, which no namespace removes
	stop   func() // ends all its processes, before the test ends
}

// newHost starts a host. All its processes end with the test.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{dir: t.TempDir()}
	cmd := exec.Command("sh", "-c", hostScript)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start host: %v", err)
	}
	h.stop = sync.OnceFunc(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("stop host: %v", err)
		}
		removeCgroups(t, h.cgroup)
	})
	t.Cleanup(h.stop)
	h.pid = cmd.Process.Pid
	h.cgroup = fmt.Sprintf("/cnibox-e2e-%d", h.pid)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("start host: %q, %v", line, err)
	}
	h.bin = links(t)
	h.conf = filepath.Join(h.dir, "net.d")
	return h
}

// removeCgroups removes a cgroup and all below it, from every hierarchy of version 1 and from version 2. They hold no process at
// that time.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	var tops []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + name)
		if err != nil {
			t.Error(err)
		}
		tops = append(tops, found...)
	}
	for _, top := range tops {
		var dirs []string
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return err
		})
		if err != nil {
			t.Errorf("list cgroups: %v", err)
		}
		slices.Reverse(dirs) // the lower ones first
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil {
				t.Errorf("remove cgroup: %v", err)
			}
		}
	}
}

// command runs a program inside the host.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(h.pid), "--net", "--mount", "--pid", "--"}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// run runs a program inside the host and returns its output; a failure ends the test.
func (h *host) run(t *testing.T, args ...string) string {
	t.Helper()
	return runEnv(t, nil, h, args...)
}

// runEnv is run with additional environment.
func runEnv(t *testing.T, env []string, h *host, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := h.command(ctx, args...)
	cmd.Env = append(os.Environ(), env...)
	var errText bytes.Buffer
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("run %q: %v\n%s%s", args, err, out, errText.Bytes())
	}
	return string(out)
}

// start runs a program inside the host until the host ends. Its output is printed if the test fails.
func (h *host) start(t *testing.T, args ...string) {
	t.Helper()
	h.startAs(t, args[0], args...)
}

// startAs is start of a program that another one starts.
func (h *host) startAs(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(h.dir, filepath.Base(name)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.command(t.Context(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %q: %v", args, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s", name, lastLines(log, 60))
		}
		// The context has ended nsenter, whose status has no meaning. The program itself ends with the host, in a later clean-up.
		_ = cmd.Wait()
		_ = log.Close()
	})
}

// lastLines returns the end of a file that may still be written to.
func lastLines(f *os.File, n int) string {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<26))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// linkNames lists the host's devices.
func (h *host) linkNames(t *testing.T) []string {
	t.Helper()
	var links []struct{ IfName string }
	decode(t, h.run(t, "ip", "-j", "link", "show"), &links)
	names := make([]string, 0, len(links))
	for _, l := range links {
		names = append(names, l.IfName)
	}
	return names
}

// files lists the regular files below a directory of the host. A missing directory has none.
func (h *host) files(t *testing.T, dir string) []string {
	t.Helper()
	return strings.Fields(h.run(t, "find", "/run/netns", "/var/lib", "-path", dir+"/*", "-type", "f"))
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("decode %.200q: %v", text, err)
	}
}
