package cloudsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// daemon serves until the test ends, and returns its socket.
func daemon(t *testing.T, args ...string) (control string) {
	t.Helper()
	clustertest.Loopback(t)
	control = filepath.Join(t.TempDir(), "sim.sock")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Command(ctx, append(args, "-control", control), io.Discard, io.Discard) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for {
		if _, err := give(control, "count"); !errors.Is(err, errNoSim) {
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

// give sends an order as the command line does, and returns what it prints.
func give(control string, args ...string) (string, error) {
	var out strings.Builder
	err := Command(context.Background(), append(args, "--control="+control), &out, io.Discard)
	return strings.TrimSuffix(out.String(), "\n"), err
}

// TestControl: a simulator does what it is ordered to do, and its node is the file's.
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
	out, err := give(control, "show")
	var nics []store.CloudNIC
	if err = errors.Join(err, json.Unmarshal([]byte(out), &nics)); err != nil || fmt.Sprint(nics) != fmt.Sprint(twoNICs()) {
		t.Errorf("show: %v, %v", out, err)
	}
	out, err = give(control, "add", "--nic", "0A:1B:2C:3D:4E:02", "10.0.1.99")
	if err != nil || out != "the node has 4 addresses and 2 prefixes for pods" {
		t.Errorf("add: %v, %v", out, err)
	}
	out, err = give(control, "break", "503", "--count", "2", "--delay", "3s")
	if err != nil || out != "broken: 503 for 2 requests" {
		t.Errorf("break: %v, %v", out, err)
	}
	out, err = give(control, "heal")
	if err != nil || out != "broken: nothing" {
		t.Errorf("heal: %v, %v", out, err)
	}
	out, err = give(control, "count")
	var counts Counts
	if err = errors.Join(err, json.Unmarshal([]byte(out), &counts)); err != nil || fmt.Sprint(counts) != fmt.Sprint(newCounts()) {
		t.Errorf("count: %v, %v", out, err)
	}
	if _, err = give(control, "break", "wings"); !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), `break: "wings" is not a fault`) {
		t.Errorf("break wings: %v", err)
	}
	if _, err := give(control+"x", "count"); !errors.Is(err, errNoSim) {
		t.Errorf("without a simulator: %v", err)
	}
	if err := Command(t.Context(), []string{"count", "--control"}, io.Discard, io.Discard); !errors.Is(err, roles.ErrUsage) {
		t.Errorf("--control without a value: %v", err)
	}
	if _, err := give(control, "azure", "-listen", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "a daemon runs already") {
		t.Errorf("a second one: %v", err)
	}
	var listed strings.Builder
	if err := Command(t.Context(), []string{"kinds"}, &listed, io.Discard); err != nil || strings.Count(listed.String(), "\n") != len(kinds())+2 {
		t.Errorf("kinds: %v, %v", listed.String(), err)
	}
	for order, want := range map[string]string{"{": "read the order", `{"args":[]}`: "is not an order", "\x00": "read the order"} {
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

// TestNodeFile: a file that is not a description of a node is refused with its path; null is a node without interfaces.
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

// unserved is a simulator without listeners.
func unserved(nics []store.CloudNIC) *Sim {
	log := slog.New(slog.DiscardHandler)
	return &Sim{providers: providers(), log: log, nics: nics, listen: &listeners{log: log}, healed: make(chan struct{}), changed: make(chan struct{}), counts: newCounts()}
}

// sayAll makes the whole reply of every provider.
func sayAll(v *view) {
	_ = azureXML(v)
	_, _, _, _ = imdsInstance(v), awsTree(v), gcpDocument(v), alibabaTree(v)
	_, _, _, _ = tencentTree(v), oracleVNICs(v), openstackNetwork(v), droplet(v)
	_, _ = hetznerPrivate(v), vultrDocument(v)
}

// FuzzScript: no script and no order crashes the simulator.
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
		v, _ := s.view(s.faults)
		sayAll(v)
	})
}

// FuzzNode: every provider answers for every description of a node, with every fault.
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
			v, _ := s.view([]*fault{{kind: k}})
			sayAll(v)
		}
		if _, err := s.do([]string{"add", "10.0.0.99", "2001:db8::/80"}); err == nil {
			_, _ = s.do([]string{"withdraw", "10.0.0.99"})
		}
	})
}
