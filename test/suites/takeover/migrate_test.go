package takeover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/command"
)

// installed runs the plugin that is installed on the node, as a runtime does.
func installed(n *node, c rolestest.Call) (rolestest.Answer, error) { return ours(n, c) }

// newReferenceNode is a node whose installed plugins are those of the reference, with a network of three plugins.
func newReferenceNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t,
		object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true},
		object{"type": "portmap", "backend": "iptables"},
		object{"type": "firewall", "backend": "iptables"})
	n.list[0]["ipam"] = n.hostLocal("bridge")
	prepare(t, n)
	must(t, os.RemoveAll(n.PluginDir()))
	must(t, os.MkdirAll(n.PluginDir(), 0o700))
	for _, p := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
		must(t, exec.Command("cp", filepath.Join(n.peers, p), n.PluginDir()).Run())
	}
	must(t, os.MkdirAll(n.confDir(), 0o700))
	conf, err := json.Marshal(object{"cniVersion": n.version, "name": "net1", "plugins": n.list})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(n.confDir(), "net1.conflist"), conf, 0o600))
	// The command line reads the runtime's cache here, too.
	must(t, os.MkdirAll(filepath.Join(n.RunDir(), "cli"), 0o700))
	must(t, os.Symlink(n.CacheDir(), filepath.Join(n.RunDir(), "cli", "results")))
	n.run("first", 8079).end() // the reference keeps its chains for ports
	return n
}

func (n *node) confDir() string { return filepath.Join(n.Dir(), "net.d") }

// programs is the directory of the node's runtimes.
func (n *node) programs() string { return filepath.Join(n.Dir(), "programs") }

// run attaches a container with the installed plugins, as a runtime does.
func (n *node) run(id string, port int) *container {
	n.t.Helper()
	c := n.container(id)
	c.port = port
	c.add(installed)
	add := c.call("ADD", 0, nil)
	list, err := json.Marshal(object{"cniVersion": n.version, "name": "net1", "plugins": c.list})
	must(n.t, err)
	add.Conf = string(list)
	n.Cache(add, string(c.result))
	return c
}

// end detaches a container with the installed plugins.
func (c *container) end() {
	c.t.Helper()
	c.del(installed, c.ns.Path())
	must(c.t, os.Remove(filepath.Join(c.CacheDir(), "net1-"+c.id+"-eth0")))
	c.ns.Remove(c.t)
}

// command runs a command line and returns its output, with the exit code if it is not 0.
func (n *node) command(args ...string) string {
	n.t.Helper()
	cmd := command.Cmd(n.Env, args...)
	cmd.Env = append(cmd.Env, "PATH="+n.programs()+":/usr/sbin") // without runtimes of this machine, whose configuration would be written
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Sprintf("%s[exit code %d]\n", out, exit.ExitCode())
	}
	must(n.t, err)
	return string(out)
}

// migrate returns the arguments of a migration of this node.
func (n *node) migrate(args ...string) []string {
	return append(args, "--dir", n.PluginDir(), "--conf-dir", n.confDir())
}

// reaches sends a packet from one container to the other. The sockets are closed with the subtest, because they hold the namespaces.
func reaches(t *testing.T, from, to *container) {
	t.Helper()
	t.Run(from.id+" to "+to.id, func(t *testing.T) {
		source, _, _ := strings.Cut(address(t, from.result), "/")
		target, _, _ := strings.Cut(address(t, to.result), "/")
		netopstest.CheckDatagram(t, "request", from.ns, netopstest.Listen(t, to.ns, target+":0"), source)
	})
}

// TestMigrateReference makes the documented migration of a node with running containers, and returns: containers of both sides
// reach each other at each step, the new side detaches those of the other, and nothing of cnibox remains.
func TestMigrateReference(t *testing.T) {
	n := newReferenceNode(t)
	before, plugins := n.state(), listing(t, n.PluginDir())
	first, second := n.run("web-1", 8080), n.run("web-2", 8081)
	var third *container
	steps := map[string]func(){
		"cnibox diff": func() {
			third = n.run("web-3", 8082)
			reaches(t, first, third)
			reaches(t, third, first)
			first.check(installed)
			second.end()
		},
	}
	n.documented("The reference plugins", steps)
	reaches(t, first, third)
	third.end()
	if out := n.command(n.migrate("migrate", "reference", "--back", "--yes")...); !strings.Contains(out, "the node has returned to reference") || strings.Contains(out, "[exit code") {
		t.Error(out)
	}
	if now := listing(t, n.PluginDir()); now != plugins {
		t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
	}
	first.end()
	n.same(before, "at the end")
	if files, err := filepath.Glob(n.StateDir() + "/migrate-*"); err != nil || len(files) > 0 {
		t.Errorf("left: %q, %v", files, err)
	}
}

// documented executes the command lines of a section of docs/migrate.md and compares their output. steps are executed for lines of other
// programs.
func (n *node) documented(section string, steps map[string]func()) {
	n.t.Helper()
	command.Documented(n.t, "../../../docs/migrate.md", section, func(line string) string {
		if do := steps[line]; do != nil {
			do()
		}
		args, is := strings.CutPrefix(line, "cnibox ")
		if !is {
			return ""
		}
		given := strings.Fields(args)
		if given[0] == "migrate" {
			given = n.migrate(given...)
		} else {
			given = append(given, "--cni-path", n.PluginDir())
		}
		return n.masked(n.command(given...))
	})
}

// masked replaces what differs between runs.
func (n *node) masked(out string) string {
	out = strings.NewReplacer(n.PluginDir(), "/opt/cni/bin", n.StateDir(), "/var/lib/cnibox", n.RunDir(), "/run/cnibox").Replace(out)
	return regexp.MustCompile(`\t[0-9]+m?s\t`).ReplaceAllString(hostLinks(out), "\t1s\t")
}

// hostLinks replaces the names of links and of the boot.
func hostLinks(out string) string {
	return regexp.MustCompile(`(veth|azv)[0-9a-f]{11}`).ReplaceAllString(regexp.MustCompile(`/run/cnibox/[0-9a-f-]{36}`).ReplaceAllString(out, "/run/cnibox/BOOT"), "${1}0a1b2c3d4e5")
}

// listing returns the names and sizes of a directory's files.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var b strings.Builder
	for _, e := range entries {
		fi, err := e.Info()
		must(t, err)
		fmt.Fprintf(&b, "%s %d\n", e.Name(), fi.Size())
	}
	return b.String()
}

// TestMigrateKilled kills the migration, and in other runs the return, after the n-th change in the plugin directory, and repeats it.
// CNIBOX_SWEEP is the distance of the tried changes in threes.
func TestMigrateKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	stride, _ := strconv.Atoi(os.Getenv("CNIBOX_SWEEP"))
	for _, back := range []bool{false, true} {
		for at, killed := 1, true; killed; at += 3 * max(1, stride) {
			t.Run(fmt.Sprintf("back %v, change %d", back, at), func(t *testing.T) { killed = migrateKilled(t, back, at) })
		}
	}
}

// migrateKilled reports whether the command was killed before its end.
func migrateKilled(t *testing.T, back bool, at int) (killed bool) {
	t.Helper()
	n := newReferenceNode(t)
	before, plugins := n.state(), listing(t, n.PluginDir())
	c := n.run("web-1", 8080)
	forth, args := n.migrate("migrate", "reference", "--yes"), n.migrate("migrate", "reference", "--yes", "--back")
	if !back {
		killed = n.kill(at, forth)
	}
	if out := n.command(forth...); !strings.Contains(out, "no differences found in 1 attachment") {
		t.Error(out)
	}
	other := n.run("web-2", 8081)
	reaches(t, c, other)
	other.end()
	if back {
		killed = n.kill(at, args)
	}
	_, err := os.Stat(filepath.Join(n.StateDir(), "migrate-reference.json"))
	if killed && err != nil {
		t.Error(err)
	}
	if err == nil {
		if out := n.command(args...); !strings.Contains(out, "has returned to reference") {
			t.Error(out)
		}
	}
	if now := listing(t, n.PluginDir()); now != plugins {
		t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
	}
	c.end()
	n.same(before, "at the end")
	return killed
}

// kill kills a command after the n-th change in the plugin directory, and reports whether it came so far.
func (n *node) kill(at int, args []string) bool {
	n.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(n.t, err)
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	_, err = unix.InotifyAddWatch(fd, n.PluginDir(), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE)
	must(n.t, err)
	cmd := command.Cmd(n.Env, args...)
	cmd.Env = append(cmd.Env, "PATH="+n.programs()+":/usr/sbin")
	must(n.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
		_ = events.SetReadDeadline(time.Now())
	}()
	b := make([]byte, 1<<16)
	for seen := 0; seen < at; {
		k, err := events.Read(b)
		if err != nil {
			return false // the command ended
		}
		for rest := b[:k]; len(rest) > 0; seen++ {
			rest = rest[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(rest[12:]):]
		}
	}
	_ = cmd.Process.Kill()
	<-ended
	return true
}

// TestMigrateRefused: a node that cannot be migrated stays unchanged.
func TestMigrateRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		args       []string
		change     func(n *node) error
	}{
		{"invalid network", "a network is invalid", []string{"migrate", "reference", "--yes"}, func(n *node) error {
			return os.WriteFile(filepath.Join(n.confDir(), "wrong.conflist"), []byte(`{"name":"wrong","cniVersion":"1.0.0","plugins":[{"type":"bridge","mtu":"x"}]}`), 0o600)
		}},
		{"directory in place of a plugin", "is a directory: remove it", []string{"migrate", "reference", "--yes"}, func(n *node) error {
			return os.Mkdir(filepath.Join(n.PluginDir(), "vlan"), 0o700)
		}},
		{"no flannel", "there is no flannel on this node", []string{"migrate", "flannel", "--yes"}, nil},
		{"no whereabouts", "there is no whereabouts on this node", []string{"migrate", "whereabouts", "--yes"}, nil},
		{"flannel with a blackhole route", "start flanneld without it first", []string{"migrate", "flannel", "--yes"}, func(n *node) error {
			cmd := exec.Command("sleep", "1000")
			cmd.Path, cmd.Args = "/bin/sh", []string{"/opt/bin/flanneld", "-c", "read x", "--ip-masq=false", "--ip-blackhole-route"}
			in, err := cmd.StdinPipe()
			n.t.Cleanup(func() { must(n.t, errors.Join(in.Close(), ignoreExit(cmd.Wait()))) })
			return errors.Join(err, cmd.Start())
		}},
		{"never migrated", "this node was not migrated from reference", []string{"migrate", "reference", "--back", "--yes"}, nil},
		{"damaged record", "try: correct or delete it", []string{"migrate", "reference", "--yes"}, func(n *node) error {
			return os.WriteFile(filepath.Join(n.StateDir(), "migrate-reference.json"), []byte("damaged"), 0o600)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newReferenceNode(t)
			records := func() int {
				found, err := filepath.Glob(filepath.Join(n.StateDir(), "migrate*"))
				must(t, err)
				return len(found)
			}
			if c.change != nil {
				must(t, c.change(n))
			}
			before, plugins, recorded := n.state(), listing(t, n.PluginDir()), records()
			if out := n.command(n.migrate(c.args...)...); !strings.Contains(out, c.want) || !strings.Contains(out, "[exit code 1]") {
				t.Errorf("%s: want %q", out, c.want)
			}
			n.same(before, "afterwards")
			if now := listing(t, n.PluginDir()); now != plugins {
				t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
			}
			if now := records(); now != recorded {
				t.Errorf("%d records, and %d before", now, recorded)
			}
		})
	}
}

// ignoreExit returns no error for a process that ended with an exit code.
func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}

// TestMigrateRuntime: the migration makes podman use the plugins, and the return removes that file. With --json the steps, changes
// and differences are one document, with the same exit codes.
func TestMigrateRuntime(t *testing.T) {
	n := newReferenceNode(t)
	privateEtc(t)
	must(t, os.Mkdir(n.programs(), 0o700))
	must(t, os.WriteFile(filepath.Join(n.programs(), "podman"), nil, 0o700))
	c := n.run("web-1", 8080)
	const file = "/etc/containers/containers.conf.d/90-cnibox.conf"
	for _, call := range []struct {
		args    []string
		states  string
		changed bool
		code    string
	}{
		{[]string{"--json"}, "plugins todo, podman todo", false, "[exit code 3]\n"},
		{[]string{"--json", "--yes"}, "plugins done, podman done", true, ""},
		{[]string{"--json", "--yes"}, "plugins done, podman done", false, ""},
		{[]string{"--json", "--yes", "--back"}, "plugins done, drain done", true, ""},
	} {
		out := n.command(n.migrate(append([]string{"migrate", "reference"}, call.args...)...)...)
		var answer struct {
			Steps                []struct{ Step, State string }
			Changes, Differences []json.RawMessage
		}
		d := json.NewDecoder(strings.NewReader(out[strings.Index(out, "{"):]))
		must(t, d.Decode(&answer))
		var states []string
		for _, s := range answer.Steps {
			states = append(states, s.Step+" "+s.State)
		}
		if strings.Join(states, ", ") != call.states || len(answer.Changes) > 0 != call.changed || answer.Differences == nil || len(answer.Differences) > 0 || !strings.HasSuffix(out, "\n"+call.code) {
			t.Errorf("%q: %s", call.args, out)
		}
		_, err := os.Stat(file)
		if there := err == nil; there != (call.states == "plugins done, podman done") {
			t.Errorf("%q: %s: %v", call.args, file, err)
		}
	}
	c.end()
}

// privateEtc makes changes in /etc for this test only.
func privateEtc(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	must(t, errors.Join(os.Mkdir(dir+"/upper", 0o755), os.Mkdir(dir+"/work", 0o755)))
	must(t, unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+dir+"/upper,workdir="+dir+"/work"))
	t.Cleanup(func() {
		must(t, errors.Join(unix.Unmount("/etc", unix.MNT_DETACH), unix.Unmount(dir, unix.MNT_DETACH)))
	})
	must(t, os.RemoveAll("/etc/containers"))
}
