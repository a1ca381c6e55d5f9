package dranet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// programs has the built cnibox and its link range.
var programs string

func TestMain(m *testing.M) { os.Exit(withPrograms(m)) }

func withPrograms(m *testing.M) int {
	var err error
	programs, err = os.MkdirTemp("", "dranet-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(programs)
	return m.Run()
}

// build builds the programs.
var build = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w", "-o", filepath.Join(programs, "cnibox"), "github.com/cnibox/cnibox").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.Symlink("cnibox", filepath.Join(programs, "range"))
})

// lan is the network of the tests. Devices and containers share its range.
const lan = `{"cniVersion": "1.1.0", "name": "lan", "type": "host-device", "ipam": {"type": "range", "range": "10.9.0.0/26", "gateway": "10.9.0.1",
	"routes": [{"dst": "10.0.0.0/8"}, {"dst": "192.0.2.0/24", "gw": "10.9.0.2"}]}}`

// computer is a node with an agent and the provider of DraNet, each in a process.
type computer struct {
	t             *testing.T
	name, root    string
	cluster       string
	flags         []string // of the provider
	mu            sync.Mutex
	agent, dranet *exec.Cmd
	calls         *http.Client
}

// newComputer makes a node without processes. Its registry is a directory.
func newComputer(t *testing.T, cluster, name string, flags ...string) *computer {
	t.Helper()
	must(t, build())
	c := &computer{t: t, name: name, root: t.TempDir(), cluster: cluster, flags: flags}
	for _, d := range []string{"run", "state", "net.d", "results"} {
		must(t, os.Mkdir(c.path(d), 0o700))
	}
	c.network("10-lan.conf", lan)
	c.calls = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.socket())
	}}}
	t.Cleanup(func() { c.kill(&c.agent); c.kill(&c.dranet) })
	return c
}

func clusterDir(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "cluster")
	must(t, os.Mkdir(root, 0o755))
	must(t, os.WriteFile(filepath.Join(root, "config.json"), []byte("{}"), 0o600))
	return root
}

func (c *computer) path(of string) string { return filepath.Join(c.root, of) }

func (c *computer) socket() string { return c.path("run/dranet/dranet.sock") }

// network writes a network's file.
func (c *computer) network(file, conf string) {
	c.t.Helper()
	must(c.t, os.WriteFile(c.path("net.d/"+file), []byte(conf), 0o600))
}

// command prepares cnibox on the node.
func (c *computer) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programs, "cnibox"), args...)
	cmd.Env = append(os.Environ(), "CNIBOX_RUN_DIR="+c.path("run"), "CNIBOX_STATE_DIR="+c.path("state"), "CNIBOX_LOG=info")
	return cmd
}

// start starts both processes, and waits until the provider listens.
func (c *computer) start() {
	c.t.Helper()
	c.startAgent()
	c.startProvider()
	c.listens()
}

func (c *computer) startAgent() {
	c.run(&c.agent, "agent", "--ranges-only", "--cluster-dir="+c.cluster, "--node-name="+c.name, "--cni-conf-dir="+c.path("net.d"))
}

func (c *computer) startProvider() {
	flags := c.flags
	if flags == nil {
		flags = []string{"--kube-api-url=http://127.0.0.1:1"} // no address is collected without a list
	}
	c.run(&c.dranet, append([]string{"dranet", "--cni-conf-dir=" + c.path("net.d")}, flags...)...)
}

func (c *computer) run(as **exec.Cmd, args ...string) {
	cmd := c.command(args...)
	cmd.Stderr = c.log(args[0])
	if err := cmd.Start(); err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	*as = cmd
}

func (c *computer) log(of string) io.Writer {
	f, err := os.OpenFile(c.path(of+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(c.t, err)
	c.t.Cleanup(func() { f.Close() })
	return f
}

// kill kills a process.
func (c *computer) kill(which **exec.Cmd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *which != nil {
		_ = (*which).Process.Kill()
		_ = (*which).Wait()
		*which = nil
	}
}

// listens waits until the provider answers DraNet's first question.
func (c *computer) listens() {
	c.t.Helper()
	var got string
	await.Until(c.t, func() bool {
		res, err := c.calls.Get("http://localhost/health")
		if err != nil {
			got = err.Error()
			return false
		}
		defer res.Body.Close()
		raw, _ := io.ReadAll(res.Body)
		got = string(raw)
		return got == `{"cloudProvider":false,"profileProvider":true}`+"\n"
	}, func() string { return got + c.logged() })
}

func (c *computer) logged() string {
	out := ""
	for _, of := range []string{"agent", "dranet"} {
		raw, _ := os.ReadFile(c.path(of + ".log"))
		out += "\n" + of + ":\n" + string(raw[max(0, len(raw)-3000):])
	}
	return out
}

// answer is one of the provider.
type answer struct {
	code int
	text string
	// addresses are those of a device's configuration.
	addresses []string
}

// config is the user's configuration of a device.
func config(profile string, addresses ...string) string {
	raw, _ := json.Marshal(map[string]any{"profile": profile, "interface": map[string]any{"addresses": addresses, "mtu": 1400}, "ethtool": map[string]any{"features": map[string]bool{"x": true}}})
	return string(raw)
}

// body is the body of a call as DraNet makes it.
func body(claim, device, config string) string {
	return fmt.Sprintf(`{"device":{"mac_address":"02:00:00:00:00:01","name":%q},"claim_uid":%q,"config":%s}`, device, claim, config)
}

// call calls a method of the provider.
func (c *computer) call(ctx context.Context, method, body string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/"+method, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := c.calls.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{code: res.StatusCode, text: string(bytes.TrimSpace(raw))}
	var conf struct{ Interface struct{ Addresses []string } }
	if a.code == http.StatusOK {
		err = json.Unmarshal(raw, &conf)
	}
	a.addresses = conf.Interface.Addresses
	return a, err
}

// must returns the answer of a call that is answered.
func (c *computer) must(method, body string) answer {
	c.t.Helper()
	a, err := c.call(c.t.Context(), method, body)
	must(c.t, err)
	return a
}

// get returns the address of a device of the network lan, when it has one.
func (c *computer) get(claim, device string) netip.Addr {
	c.t.Helper()
	var a answer
	var err error
	await.Until(c.t, func() bool {
		a, err = c.call(c.t.Context(), "GetProfileConfig", body(claim, device, config("lan")))
		return err == nil && a.code == http.StatusOK
	}, func() string { return fmt.Sprint(a, err, c.logged()) })
	return single(c.t, a)
}

// single returns the address of an answer with one.
func single(t *testing.T, a answer) netip.Addr {
	t.Helper()
	if len(a.addresses) != 1 {
		t.Fatalf("%+v", a)
	}
	p, err := netip.ParsePrefix(a.addresses[0])
	if err != nil || p.Bits() != 26 {
		t.Fatalf("%+v: %v", a, err)
	}
	return p.Addr()
}

// plugin calls the IPAM plugin for a container of the network lan.
func (c *computer) plugin(verb, id, stdin string) (out []byte, err error) {
	cmd := c.command()
	cmd.Path = filepath.Join(programs, "range")
	cmd.Args = []string{"range"}
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+verb, "CNI_PATH="+programs, "CNIBOX_LOG=")
	if id != "" {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+id, "CNI_IFNAME=net1", "CNI_NETNS=/no/such/netns")
	}
	cmd.Stdin = strings.NewReader(stdin)
	return cmd.Output()
}

// leases returns the leases of devices in the network lan by owner, as claim/device.
func (c *computer) leases() map[string]netip.Addr {
	c.t.Helper()
	h, done, err := node.Open(c.t.Context(), node.Options{RunDir: c.path("run"), StateDir: c.path("state"), Role: "test"})
	must(c.t, err)
	defer done()
	all, err := store.Read(c.t.Context(), h.Store, ranges.DeviceLeases)
	must(c.t, err)
	out := map[string]netip.Addr{}
	for i := range all {
		l := &all[i]
		key := l.Owner.ContainerID + "/" + l.Owner.IfName
		if network, _ := ranges.DeviceNetwork(l.Owner); network == "lan" {
			if out[key].IsValid() {
				c.t.Errorf("%s has two leases", key)
			}
			out[key] = l.Address
		}
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			t.Fatalf("%v: %s", err, ended.Stderr)
		}
		t.Fatal(err)
	}
}
