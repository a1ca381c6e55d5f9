package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

// TestMain runs the tests in separate namespaces. Scripts run the test binary as
// "cnibox".
func TestMain(m *testing.M) {
	switch os.Getenv("CLITEST_INSIDE") {
	case "":
		os.Exit(inNamespaces())
	case "new": // host-local writes to /var/lib/cni, and other packages' tests to /run
		err := os.Setenv("CLITEST_INSIDE", "1")
		for _, dir := range []string{"/var/lib", "/run"} {
			err = errors.Join(err, syscall.Mount("none", dir, "tmpfs", 0, "mode=755"))
		}
		if err != nil {
			panic(err)
		}
	}
	commands := map[string]func(){
		"cnibox":  func() { os.Exit(mainOf(testTable())) },
		"product": func() { os.Exit(mainOf(all.Table())) },
		"listen":  listen,
	}
	for _, r := range all.Table().Roles() {
		for _, name := range r.Names {
			commands[name] = func() { os.Exit(plugin()) }
		}
	}
	testscript.Main(m, commands)
}

// plugin runs a role of cnibox as a plugin that a runtime executed.
func plugin() int {
	return dispatch.Main(context.Background(), dispatch.Process{
		Table: all.Table(), Args: os.Args, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: "v0.0.0-test", Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string, _ *slog.Logger) (*roles.Host, func(), error) {
			return openHost(ctx, role)
		},
	})
}

// listen binds sockets ("tcp=0.0.0.0:80", "udp=127.0.0.53:53"), says so, and keeps them open as "sleep infinity".
func listen() {
	var files []*os.File
	for _, arg := range os.Args[1:] {
		network, address, _ := strings.Cut(arg, "=")
		var s interface{ File() (*os.File, error) }
		if network == "udp" {
			c, err := net.ListenPacket("udp4", address)
			if err != nil {
				panic(err)
			}
			s = c.(*net.UDPConn) //nolint:forcetypeassert // of network udp
		} else {
			l, err := net.Listen("tcp4", address)
			if err != nil {
				panic(err)
			}
			s = l.(*net.TCPListener) //nolint:forcetypeassert // of network tcp
		}
		file, err := s.File()
		if err != nil {
			panic(err)
		}
		if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			panic(err)
		}
		files = append(files, file)
	}
	fmt.Println("listening")
	err := syscall.Exec("/bin/sleep", []string{"sleep", "infinity"}, nil)
	runtime.KeepAlive(files)
	panic(err)
}

// inNamespaces runs the test binary again in new mount and network namespaces.
func inNamespaces() int {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), "CLITEST_INSIDE=new")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if err := c.Run(); err != nil {
		return 1
	}
	return 0
}

// mainOf is cnibox's main function with another table.
func mainOf(table roles.Table) int {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Main(context.Background(), Process{
		Table: table, Args: os.Args[1:], Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		IsTerminal: os.Getenv("CLITEST_TERMINAL") != "", ErrIsTerminal: os.Getenv("CLITEST_ERR_TERMINAL") != "",
		Version: "v0.0.0-test", Executable: exe, ErrorCode: dispatch.ErrorCode,
		Self: dispatch.Self{Executable: exe}, Plugins: dispatch.NewDelegator(dispatch.Process{Stderr: os.Stderr}, new(roles.Host), slog.New(slog.DiscardHandler)),
		CheckRequest: func(req *roles.Request) error { return dispatch.CheckRequest(req, table) },
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := openHost(ctx, role)
			if err == nil {
				h.Delegate = dispatch.NewDelegator(dispatch.Process{Table: table, Executable: exe, Stderr: os.Stderr}, h, h.Log)
			}
			return h, done, err
		},
	})
}

func openHost(ctx context.Context, role string) (*roles.Host, func(), error) {
	return node.Open(ctx, node.Options{
		RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"), Role: role, Program: "test",
		Reference: migrate.ReferencePlugins{},
	})
}

func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// TestReal attaches containers. It does not run together with the other scripts, which
// share one network namespace and must not find its objects in the kernel.
func TestReal(t *testing.T) { runScripts(t, "testdata/real") }

// TestRepair breaks real attachments.
func TestRepair(t *testing.T) { runScripts(t, "testdata/repair") }

// TestDiff finds what has no record, and what a new configuration would change.
func TestDiff(t *testing.T) { runScripts(t, "testdata/diff") }

// TestBench measures plugins without a change of the node.
func TestBench(t *testing.T) { runScripts(t, "testdata/bench") }

// TestUI serves the page of real attachments.
func TestUI(t *testing.T) { runScripts(t, "testdata/ui") }

// TestPath breaks the ways of packets between real attachments.
func TestPath(t *testing.T) { runScripts(t, "testdata/path") }

// TestProbe sends packets between real attachments, and breaks their paths.
func TestProbe(t *testing.T) { runScripts(t, "testdata/probe") }

// TestVLAN breaks the VLANs of ports, between attachments that share one.
func TestVLAN(t *testing.T) {
	netopstest.NeedVLANFiltering(t)
	runScripts(t, "testdata/vlan")
}

// TestNetkit looks at attachments by netkit pairs.
func TestNetkit(t *testing.T) {
	netopstest.NeedKind(t, "netkit")
	runScripts(t, "testdata/netkit")
}

// TestEncrypted follows packets into a WireGuard device.
func TestEncrypted(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	runScripts(t, "testdata/encrypted")
}

// TestCapture records the packets of real attachments.
func TestCapture(t *testing.T) { runScripts(t, "testdata/capture") }

// TestTopo draws real attachments.
func TestTopo(t *testing.T) { runScripts(t, "testdata/topo") }

// TestDrain also attaches containers. It leaves no objects in the kernel.
func TestDrain(t *testing.T) { runScripts(t, "testdata/drain") }

func runScripts(t *testing.T, dir string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CNIBOX_RUN_DIR", e.WorkDir+"/run")
			e.Setenv("CNIBOX_STATE_DIR", e.WorkDir+"/lib")
			e.Setenv("CLITEST_INSIDE", "1")
			e.Setenv("FIRST", "nsenter --net=/proc/1/ns/net")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program that must exit with the given code: exits 2 cnibox lint
func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		code = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// testTable has one role of each kind with a small configuration. The roles of cnibox
// have their own tests.
func testTable() roles.Table {
	return tabletest.Of(
		roles.Role{
			Names: []string{"testbridge", "testbr"}, Kind: roles.Interface, Summary: "makes an interface", Reference: "v1.9.1",
			Capabilities: []string{"mac"}, Conf: func() any { return new(bridgeConf) },
			New: newBridge,
		},
		roles.Role{
			Names: []string{"testipam"}, Kind: roles.IPAM, Summary: "gives addresses",
			Capabilities: []string{"ips"}, Conf: func() any { return new(ipamConf) },
			New:   newIPAM,
			Verbs: testVerbs,
		},
		roles.Role{
			Names: []string{"testmap"}, Kind: roles.Chained, Summary: "changes an interface",
			Conf: func() any { return new(roles.NetConf) },
			New:  func([]byte) (roles.Handler, error) { return handler{}, nil },
		},
		roles.Role{
			Names: []string{"testd"}, Kind: roles.Daemon, Summary: "runs until it is stopped",
			Run: func(context.Context, *roles.Host, []string) error { return nil },
		},
	)
}

type bridgeConf struct {
	roles.NetConf
	// IsGateway makes the bridge the gateway.
	IsGateway bool `json:"isGateway"`
	// Bridge is the bridge's name.
	Bridge string `json:"bridge"`
	// MTU of the interface.
	MTU           int `json:"mtu"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Trunk []struct {
		ID int `json:"id"`
	} `json:"vlanTrunk"`
}

func newBridge(conf []byte) (roles.Handler, error) {
	var c bridgeConf
	if err := roles.Decode(conf, &c); err != nil {
		return nil, err
	}
	var f roles.Faults
	if c.MTU < 0 {
		f.Addf("mtu", "is %d, want 0 or more", c.MTU)
	}
	for i, t := range c.Trunk {
		if t.ID > 4094 {
			f.Addf("vlanTrunk["+string(rune('0'+i))+"].id", "is %d, want at most 4094", t.ID)
		}
	}
	return planner{bridge: c.Bridge, mac: c.RuntimeConfig.MAC}, f.Err()
}

type ipamConf struct {
	IPAM struct {
		Type   string `json:"type"`
		Ranges [][]struct {
			Subnet string `json:"subnet"`
		} `json:"ranges"`
	} `json:"ipam"`
}

func newIPAM(conf []byte) (roles.Handler, error) {
	var c ipamConf
	if err := roles.Decode(conf, &c); err != nil {
		return nil, err
	}
	var f roles.Faults
	for i, set := range c.IPAM.Ranges {
		for j, r := range set {
			if _, err := netip.ParsePrefix(r.Subnet); err != nil {
				f.Addf("ipam.ranges["+string(rune('0'+i))+"]["+string(rune('0'+j))+"].subnet", "%q is no subnet", r.Subnet)
			}
		}
	}
	return handler{}, f.Err()
}

func greet(_ context.Context, _ *roles.Host, flags map[string]string, args []string) (any, error) {
	if len(args) > 0 {
		return map[string]any{"args": args}, nil
	}
	return "hello " + flags["to"], nil
}

// pools is a verb's result with a table and a text.
type pools struct{ Free int }

func (pools) Table() ([]string, [][]string) { return []string{"FREE"}, [][]string{{"3"}} }
func (pools) String() string                { return "3 in all" }

func showPool(_ context.Context, _ *roles.Host, flags map[string]string, args []string) (any, error) {
	if flags["twice"] != "" {
		return []string{flags["twice"], strings.Join(args, ",")}, nil
	}
	if len(args) > 0 {
		return (*pools)(nil), roles.ErrTryAgain
	}
	return pools{3}, nil
}

func renamePool(_ context.Context, _ *roles.Host, _ map[string]string, args []string) (any, error) {
	if args[1] == "bad" {
		return nil, roles.Usagef("%q is no name", args[1])
	}
	return nil, nil
}

func exportTo(_ context.Context, _ *roles.Host, _ map[string]string, args []string) (any, error) {
	return "exported to " + args[0], nil
}

type handler struct{}

func (handler) Add(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
	return nil, roles.ErrTryAgain
}
func (handler) Del(context.Context, *roles.Host, *roles.Request) error { return nil }

type planner struct {
	handler
	bridge, mac string
}

// Plan returns a change with each sign and in each namespace, and the parameters that it
// was called with.
func (p planner) Plan(_ context.Context, _ *roles.Host, req *roles.Request) (*roles.Plan, error) {
	bridge := &netops.Link{In: netops.Host, Shared: true, Name: p.bridge, Kind: "bridge", MAC: p.mac}
	if req.PrevResult != nil {
		bridge.Alias = "after " + req.PrevResult.IPs[0].Address.String()
	}
	addr := &netops.Addr{In: netops.Container, Link: req.IfName, Address: netip.MustParsePrefix("10.1.2.3/24")}
	stale := &netops.Addr{In: netops.Host, Link: p.bridge, Address: netip.MustParsePrefix("10.9.9.9/24")}
	var res roles.Result
	if err := json.Unmarshal([]byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"`+req.IfName+`"}],`+
		`"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":0}]}`), &res); err != nil {
		return nil, err
	}
	return &roles.Plan{Result: &res, Changes: []netops.Change{
		{Do: netops.Step{Verb: netops.VerbSet, Object: bridge}},
		{Do: netops.Step{Verb: netops.VerbDel, Object: stale}},
		{Do: netops.Step{Verb: netops.VerbAdd, Object: addr}},
	}}, nil
}

// TestVerbNames: no verb has a role's name, because `cnibox NAME` with a role's name is a
// call of the role.
func TestVerbNames(t *testing.T) {
	table := testTable()
	p := Process{Table: table}
	var verbs []string
	for _, c := range p.root().Subcommands {
		verbs = append(verbs, c.Names()...)
	}
	for _, r := range table.Roles() {
		for _, n := range r.Names {
			if slices.Contains(verbs, n) {
				t.Errorf("verb %q is named like a role", n)
			}
		}
	}
	slices.Sort(verbs)
	if len(slices.Compact(slices.Clone(verbs))) != len(verbs) {
		t.Errorf("two verbs of one name: %v", verbs)
	}
}

// testVerbs are the verbs of the role testipam.
func testVerbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{Name: "greet", Help: "say hello", Args: "[WHOM…]", Flags: []roles.Flag{{Name: "to", Default: "world", Help: "whom"}}, Run: greet},
		{Name: "pool show", Help: "show the pool", Args: "[NAME]", Flags: []roles.Flag{{Name: "twice", Help: "show it twice", Switch: true}}, Run: showPool},
		{Name: "pool clear", Help: "empty the pool", Run: greet},
		{Name: "pool rename", Help: "rename the pool", Args: "OLD [AT]NEW[S] [AS…]", Run: renamePool},
		{Name: "state export", Help: "write the state", Run: exportTo},
	}
}
