package cloudsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// daemon runs the role until the test ends, and returns its socket.
func daemon(t *testing.T, args ...string) (control string) {
	t.Helper()
	clustertest.Loopback(t)
	control = filepath.Join(t.TempDir(), "sim.sock")
	h := &roles.Host{Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, h, append(args, "-control", control)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for {
		if _, err := verb("count", map[string]string{"control": control}); !errors.Is(err, errNoSim) {
			return control
		}
		select {
		case err := <-done:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
}

// verb runs a verb as the command line does.
func verb(name string, flags map[string]string, args ...string) (any, error) {
	for _, v := range verbs() {
		if v.Name == ownName+" "+name {
			return v.Run(context.Background(), &roles.Host{}, flags, args)
		}
	}
	return nil, fmt.Errorf("no verb %q", name)
}

// TestControl: a daemon does what its verbs say, and its node is the file's.
func TestControl(t *testing.T) {
	node := filepath.Join(t.TempDir(), "node.json")
	b, err := json.Marshal(twoNICs())
	if err == nil {
		err = os.WriteFile(node, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	control := daemon(t, "azure", "-listen", "127.0.0.1:0", "-node", node)
	flags := func(kv ...string) map[string]string {
		all := map[string]string{"control": control}
		for i := 0; i < len(kv); i += 2 {
			all[kv[i]] = kv[i+1]
		}
		return all
	}
	out, err := verb("show", flags())
	if err != nil || fmt.Sprint(out.([]store.CloudNIC)) != fmt.Sprint(twoNICs()) {
		t.Errorf("show: %v, %v", out, err)
	}
	out, err = verb("add", flags("nic", "0A:1B:2C:3D:4E:02"), "10.0.1.99")
	if err != nil || out != "the node has 4 addresses and 2 prefixes for pods" {
		t.Errorf("add: %v, %v", out, err)
	}
	out, err = verb("break", flags("count", "2", "delay", "3s"), "503")
	if err != nil || out != "broken: 503 for 2 requests" {
		t.Errorf("break: %v, %v", out, err)
	}
	out, err = verb("heal", flags())
	if err != nil || out != "broken: nothing" {
		t.Errorf("heal: %v, %v", out, err)
	}
	out, err = verb("count", flags())
	if head, rows := out.(*Counts).Table(); err != nil || len(head) != 3 || fmt.Sprint(rows) != "[[requests  0] [forwarded  0]]" {
		t.Errorf("count: %v, %v", rows, err)
	}
	if _, err = verb("break", flags(), "wings"); err == nil || !strings.Contains(err.Error(), `break: "wings" is no fault`) {
		t.Errorf("break wings: %v", err)
	}
	if _, err := verb("count", map[string]string{"control": control + "x"}); !errors.Is(err, errNoSim) {
		t.Errorf("nobody there: %v", err)
	}
	if err := Run(t.Context(), &roles.Host{Log: slog.New(slog.DiscardHandler)}, []string{"azure", "-listen", "127.0.0.1:0", "-control", control}); err == nil || !strings.Contains(err.Error(), "a daemon runs already") {
		t.Errorf("a second one: %v", err)
	}
	out, err = verb("kinds", nil)
	if _, rows := out.(kindList).Table(); err != nil || len(rows) != len(kinds())+1 {
		t.Errorf("kinds: %v, %v", rows, err)
	}
	for order, want := range map[string]string{"{": "read the order", `{"args":[]}`: "is no command", "\x00": "read the order"} {
		c, err := net.Dial("unix", control)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(order + "\n"))
		_ = c.(*net.UnixConn).CloseWrite()
		var o outcome
		if err := json.NewDecoder(c).Decode(&o); err != nil || !strings.Contains(o.Error, want) {
			t.Errorf("%q: %+v, %v", order, o, err)
		}
		c.Close()
	}
}

// TestNodeFile: what is no description is refused with the path; an empty one is a
// node without interfaces.
func TestNodeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.json")
	for content, want := range map[string]string{
		"":                                      "unexpected end",
		`{}`:                                    "cannot unmarshal",
		`[{"subnets":[{"prefix":"10.0.0.0"}]}]`: "no '/'",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readNode(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", content, err)
		}
	}
	if err := os.WriteFile(path, []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	if nics, err := readNode(path); err != nil || nics == nil || len(nics) != 0 {
		t.Errorf("null: %v, %v", nics, err)
	}
}

// unserved is a simulator that listens nowhere.
func unserved(nics []store.CloudNIC) *Sim {
	log := slog.New(slog.DiscardHandler)
	return &Sim{providers: providers(), log: log, nics: nics, listen: &listeners{log: log}, healed: make(chan struct{}), changed: make(chan struct{}), counts: newCounts()}
}

// sayAll makes every provider's whole reply.
func sayAll(v *view) {
	_ = azureXML(v)
	_, _, _, _ = imdsInstance(v), awsTree(v), gcpDocument(v), alibabaTree(v)
	_, _, _, _ = tencentTree(v), oracleVNICs(v), openstackNetwork(v), droplet(v)
	_, _ = hetznerPrivate(v), vultrDocument(v)
}

// FuzzScript: no script and no command makes the simulator fall over.
func FuzzScript(f *testing.F) {
	f.Add("break 429 --count 2\n@3 heal\n@4 add 10.240.0.99/32 --nic 0\nthrottle 5 --period 1s")
	f.Add("withdraw 10.240.0.36\nexpire\nshow # all\ncount\nbreak refuse\nheal")
	f.Add("break many\nbreak same-subnet\nbreak outside\nbreak host-bits\nbreak prefix-32")
	f.Fuzz(func(t *testing.T, script string) {
		lines, err := parseScript(script)
		if err != nil {
			return
		}
		s := unserved(twoNICs())
		for _, l := range lines {
			_, _ = s.do(l.args)
		}
		v, _ := s.look(s.faults)
		sayAll(v)
	})
}

// FuzzNode: whatever a node is said to be, all providers have something to say of
// it, with every fault.
func FuzzNode(f *testing.F) {
	b, err := json.Marshal(twoNICs())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`[{"mac":"*","subnets":[{"own":["","::1%eth0"],"addresses":["::ffff:1.2.3.4"]},{"prefix":"255.255.255.255/32"},{"prefix":"::/0","ranges":[""]}]},{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var nics []store.CloudNIC
		if json.Unmarshal(b, &nics) != nil {
			return
		}
		s := unserved(nics)
		sayAll(&view{nics: clone(nics)})
		for _, k := range viewKinds() {
			v, _ := s.look([]*fault{{kind: k}})
			sayAll(v)
		}
		if _, err := s.do([]string{"add", "10.0.0.99", "2001:db8::/80"}); err == nil {
			_, _ = s.do([]string{"withdraw", "10.0.0.99"})
		}
	})
}
