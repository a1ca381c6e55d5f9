// Package ovs runs Open vSwitch for tests, in the namespaces of the test. On a kernel without Open vSwitch it forwards packets
// itself (datapath_type=netdev).
package ovs

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// unpacked is the directory in which test/apt.sh unpacks Open vSwitch, in the repository.
const unpacked = "bin/openvswitch"

// Switch is a running Open vSwitch.
type Switch struct {
	// Socket is the socket of its database server.
	Socket string
	root   string
	dir    string
	// database and daemon are ovsdb-server and ovs-vswitchd.
	database, daemon *process
}

// process is a program that runs until it is stopped.
type process struct {
	*exec.Cmd
	// ended is closed when it has ended.
	ended chan struct{}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Start starts Open vSwitch with an empty database. It ends with the test.
func Start(t testing.TB) *Switch {
	t.Helper()
	s := StartDatabase(t)
	if Datapath() == "netdev" { // keep the checksums that links leave to the hardware
		s.Vsctl(t, "--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
	}
	s.StartDaemon(t)
	t.Cleanup(s.StopDaemon)
	return s
}

// StartDatabase starts only the database server of Open vSwitch, with an empty database. It ends with the test.
func StartDatabase(t testing.TB) *Switch {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovs") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Switch{Socket: filepath.Join(dir, "db.sock"), root: filepath.Join(repository(t), unpacked), dir: dir}
	if _, err := os.Stat(s.root); err != nil {
		t.Fatalf("%v: run 'make setup'", err)
	}
	s.run(t, "ovsdb-tool", "create", s.file("conf.db"), filepath.Join(s.root, "usr/share/openvswitch/vswitch.ovsschema"))
	s.StartDatabase(t)
	t.Cleanup(s.StopDatabase)
	s.Vsctl(t, "--no-wait", "init")
	return s
}

// repository returns the directory with go.mod.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	return dir
}

func (s *Switch) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Switch) command(program string, args ...string) *exec.Cmd {
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib/openvswitch-switch"} {
		if file := filepath.Join(s.root, d, program); exists(file) {
			program = file
			break
		}
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(s.root, "usr/lib/x86_64-linux-gnu")+":"+filepath.Join(s.root, "lib/x86_64-linux-gnu"),
		"OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_DBDIR="+s.dir)
	return cmd
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (s *Switch) run(t testing.TB, program string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := s.command(program, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s%s", program, strings.Join(args, " "), err, errs.String(), s.logs())
	}
	return strings.TrimSpace(string(out))
}

// logs returns the last lines of the programs' messages.
func (s *Switch) logs() string {
	var all string
	for _, name := range []string{"ovsdb-server.log", "ovs-vswitchd.log"} {
		b, _ := os.ReadFile(s.file(name))
		all += name + ":\n" + string(b[max(0, len(b)-2000):])
	}
	return all
}

// start starts a program that runs until it is stopped.
func (s *Switch) start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	log, err := os.OpenFile(s.file(program+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := s.command(program, append(args, "--unixctl="+s.file(program+".ctl"))...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
	}()
	return p
}

func (p *process) stop() {
	_ = p.Process.Kill()
	<-p.ended
}

// StartDatabase starts ovsdb-server.
func (s *Switch) StartDatabase(t testing.TB) {
	t.Helper()
	_ = os.Remove(s.Socket)
	s.database = s.start(t, "ovsdb-server", s.file("conf.db"), "--remote=punix:"+s.Socket, "--remote=db:Open_vSwitch,Open_vSwitch,manager_options")
	listens := func() bool {
		c, err := net.Dial("unix", s.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil || s.database.hasEnded()
	}
	await.Until(t, listens, func() string { return "ovsdb-server does not listen" })
	if s.database.hasEnded() {
		t.Fatal(s.logs())
	}
}

// StopDatabase kills ovsdb-server.
func (s *Switch) StopDatabase() { s.database.stop() }

// StartDaemon starts ovs-vswitchd.
func (s *Switch) StartDaemon(t testing.TB) {
	t.Helper()
	s.daemon = s.start(t, "ovs-vswitchd", "unix:"+s.Socket)
}

// StopDaemon kills ovs-vswitchd.
func (s *Switch) StopDaemon() { s.daemon.stop() }

// Freeze stops ovsdb-server until the returned function is called.
func (s *Switch) Freeze(t testing.TB) (thaw func()) {
	t.Helper()
	signal := func(sig os.Signal) {
		if err := s.database.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	return func() { signal(syscall.SIGCONT) }
}

// Vsctl runs ovs-vsctl and returns its output.
func (s *Switch) Vsctl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-vsctl", append([]string{"--timeout=60", "--db=unix:" + s.Socket}, args...)...)
}

// WriteVsctl writes a program ovs-vsctl for other programs, which find the database server at its default path. The bridges that they add
// forward packets as those of Bridge.
func (s *Switch) WriteVsctl(t testing.TB, file string) {
	t.Helper()
	vsctl := s.command("ovs-vsctl")
	text := "#!/bin/sh\n[ \"$1\" != add-br ] || set -- \"$@\" -- set bridge \"$2\" datapath_type=" + Datapath() + "\n"
	for _, v := range vsctl.Env {
		if strings.HasPrefix(v, "LD_LIBRARY_PATH=") {
			text += v + " "
		}
	}
	if err := os.WriteFile(file, []byte(text+"exec "+vsctl.Path+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Bridge adds a bridge. Its own interface keeps its MAC and MTU when ports come and go.
func (s *Switch) Bridge(t testing.TB, name, mac string) {
	t.Helper()
	s.Vsctl(t, "add-br", name, "--", "set", "bridge", name, "datapath_type="+Datapath(), "other-config:hwaddr="+mac, "--", "set", "interface", name, "mtu_request=1500")
}

// Datapath returns "system" if the kernel has Open vSwitch, else "netdev".
func Datapath() string {
	b, _ := os.ReadFile("/proc/modules")
	if strings.HasPrefix(string(b), "openvswitch ") || strings.Contains(string(b), "\nopenvswitch ") {
		return "system"
	}
	return "netdev"
}

// Ports returns the configuration of all ports as a text: rows in CSV, sorted.
func (s *Switch) Ports(t testing.TB, bridges ...string) string {
	t.Helper()
	args := []string{
		"--format=csv", "--", "--columns=name,vlan_mode,tag,trunks,external_ids", "list", "port",
		"--", "--columns=name,type,ofport_request,external_ids", "list", "interface",
	}
	for _, b := range bridges {
		args = append(args, "--", "list-ports", b)
	}
	lines := strings.Split(s.Vsctl(t, args...), "\n")
	slices.Sort(lines)
	return "ovs " + strings.Join(lines, "\novs ") + "\n"
}
