package tuning_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// list is a network list on a node. The test calls its plugins as a runtime
// does.
type list struct {
	*rolestest.Env
	t  *testing.T
	ns *netopstest.NS
	// plugins are the configurations, with name and version added.
	plugins []string
	// peers is the directory of the reference plugins, if they are to be called
	// instead of ours.
	peers string
}

func newList(t *testing.T, plugins ...string) *list {
	t.Helper()
	l := &list{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t)}
	for _, p := range plugins {
		l.plugins = append(l.plugins, rolestest.WithKeys(t, p, map[string]any{"name": "net", "cniVersion": "1.1.0"}))
	}
	t.Cleanup(l.clean)
	return l
}

// clean removes what would disturb the next test.
func (l *list) clean() {
	for i := range l.plugins {
		c := l.call("GC", i, "")
		c.Conf = rolestest.WithKeys(l.t, c.Conf, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{}})
		c.ID, c.Netns, c.IfName = "", "", ""
		l.OK(c)
	}
	if br, err := netlink.LinkByName("br0"); err == nil { // the reference leaves it
		_ = netlink.LinkDel(br)
	}
}

// reference makes the list call the reference plugins.
func (l *list) reference() {
	l.t.Helper()
	var err error
	if l.peers, err = filepath.Abs("../../../bin/peers"); err != nil {
		l.t.Fatal(err)
	}
	if _, err := os.Stat(l.peers + "/tuning"); err != nil {
		l.t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	for i, p := range l.plugins {
		p = strings.Replace(p, `"type":"host-local"`, `"type":"host-local","dataDir":"`+l.Dir()+`"`, 1)
		l.plugins[i] = rolestest.WithKeys(l.t, p, map[string]any{"cniVersion": "1.0.0"})
	}
}

// call is a call for the i-th plugin with prevResult.
func (l *list) call(verb string, i int, prev string) rolestest.Call {
	l.t.Helper()
	var conf struct{ Type string }
	if err := json.Unmarshal([]byte(l.plugins[i]), &conf); err != nil {
		l.t.Fatal(err)
	}
	c := rolestest.Call{Type: conf.Type, Verb: verb, ID: "c1", Netns: l.ns.Path(), IfName: "eth0", Conf: l.plugins[i]}
	if prev != "" {
		c.Conf = rolestest.WithKeys(l.t, c.Conf, map[string]any{"prevResult": json.RawMessage(prev)})
	}
	return c
}

// run makes a call that must succeed and returns its answer.
func (l *list) run(c rolestest.Call) string {
	l.t.Helper()
	if l.peers == "" {
		return l.OK(c).Stdout
	}
	cmd := exec.Command(filepath.Join(l.peers, c.Type))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns,
		"CNI_IFNAME="+c.IfName, "CNI_ARGS="+c.Args, "CNI_PATH="+l.peers)
	cmd.Stdin = strings.NewReader(c.Conf)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		l.t.Fatalf("the reference's %s %s: %v: %s", c.Verb, c.Type, err, &out)
	}
	return out.String()
}

// add calls ADD of every plugin and returns the results.
func (l *list) add() []string {
	l.t.Helper()
	results := make([]string, 0, len(l.plugins))
	prev := ""
	for i := range l.plugins {
		prev = l.run(l.call("ADD", i, prev))
		results = append(results, prev)
	}
	return results
}

// tuned is the tuned state of a container: its interface, the host's end and
// the sysctls.
func (l *list) tuned() string {
	l.t.Helper()
	var b strings.Builder
	peer := 0
	l.ns.Do(l.t, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a := link.Attrs()
		peer = a.ParentIndex
		fmt.Fprintf(&b, "mac %s mtu %d promisc %d allmulti %v txqlen %d\n", a.HardwareAddr, a.MTU, a.Promisc, a.RawFlags&unix.IFF_ALLMULTI != 0, a.TxQLen)
		for _, key := range []string{"net/core/somaxconn", "net/ipv4/conf/eth0/arp_filter", "net/ipv6/conf/eth0/mtu", "net/ipv4/ip_local_reserved_ports"} {
			v, err := os.ReadFile("/proc/sys/" + key)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s=%s", key, v)
		}
		return nil
	})
	if end, err := netlink.LinkByIndex(peer); err == nil {
		fmt.Fprintf(&b, "host's end mtu %d\n", end.Attrs().MTU)
	}
	return b.String()
}

const everything = `{"type":"tuning","mac":"02:00:00:00:00:aa","mtu":1400,"promisc":true,"allmulti":true,"txQLen":500,"dataDir":"/run/tuning",
	"sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"1","net/ipv6/conf/IFNAME/mtu":"1300","net.ipv4.ip_local_reserved_ports":"8080"}}`

// withoutMTU6 leaves out a sysctl that the kernel sets again when the MTU
// changes.
var withoutMTU6 = strings.Replace(everything, `"net/ipv6/conf/IFNAME/mtu":"1300",`, "", 1)

const everythingTuned = `mac 02:00:00:00:00:aa mtu 1400 promisc 1 allmulti true txqlen 500
net/core/somaxconn=500
net/ipv4/conf/eth0/arp_filter=1
net/ipv6/conf/eth0/mtu=1300
net/ipv4/ip_local_reserved_ports=8080
host's end mtu 1400
`

// TestRestored: DEL restores sysctls and the interface's attributes, at both
// ends, in a container that keeps running. It also does so without a namespace
// and with a changed configuration, and so does GC. The reference does not
// restore sysctls, and it never changes the host's end (plugins#352).
func TestRestored(t *testing.T) {
	for name, del := range map[string]func(l *list, result string){
		"DEL":                     func(l *list, result string) { l.run(l.call("DEL", 1, result)) },
		"DEL without a namespace": func(l *list, _ string) { c := l.call("DEL", 1, ""); c.Netns = ""; l.run(c) },
		"DEL of other keys": func(l *list, _ string) {
			c := l.call("DEL", 1, "")
			c.Conf = `{"cniVersion":"1.1.0","name":"net","type":"tuning"}`
			l.run(c)
		},
		"DEL with faults": func(l *list, _ string) {
			c := l.call("DEL", 1, "")
			c.Conf = strings.Replace(c.Conf, "1400", `"many"`, 1)
			l.run(c)
		},
		"GC": func(l *list, _ string) { l.run(l.gc()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newList(t, bridge, everything)
			first := l.run(l.call("ADD", 0, ""))
			before := l.tuned()
			result := l.run(l.call("ADD", 1, first))
			if have := l.tuned(); have != everythingTuned {
				t.Errorf("tuned to\n%swant\n%s", have, everythingTuned)
			}
			del(l, result)
			if have := l.tuned(); have != before {
				t.Errorf("after: \n%swant\n%s", have, before)
			}
			l.run(l.call("DEL", 0, result))
			l.run(l.call("DEL", 1, ""))
		})
	}
	t.Run("reference", func(t *testing.T) {
		l := newList(t, bridge, withoutMTU6)
		l.reference()
		first := l.run(l.call("ADD", 0, ""))
		before := l.tuned()
		result := l.run(l.call("ADD", 1, first))
		if have := l.tuned(); !strings.Contains(have, "mtu 1400 promisc 1") || !strings.Contains(have, "host's end mtu 1450") {
			t.Errorf("the reference tuned to\n%s", have)
		}
		l.run(l.call("DEL", 1, result))
		if have := l.tuned(); have == before || !strings.Contains(have, "somaxconn=500") {
			t.Errorf("the reference restores sysctls:\n%s", have)
		}
		l.run(l.call("DEL", 0, result))
	})
}

// gc runs GC of the tuning plugin with only another container in the list.
func (l *list) gc() rolestest.Call {
	c := l.call("GC", 1, "")
	c.Conf = rolestest.WithKeys(l.t, c.Conf, map[string]any{"cni.dev/valid-attachments": []roles.AttachmentID{{ContainerID: "c2", IfName: "eth0"}}})
	c.ID, c.Netns, c.IfName = "", "", ""
	return c
}

// TestFailedAdd: whichever write fails, ADD leaves nothing tuned.
func TestFailedAdd(t *testing.T) {
	l := newList(t, bridge, everything)
	first := l.run(l.call("ADD", 0, ""))
	before := l.tuned()
	for n := 1; ; n++ {
		c := l.call("ADD", 1, first)
		c.Probe = fmt.Sprintf("net:fail:%d", n)
		a := l.Run(c)
		if a.Code == 0 {
			if n < 9 {
				t.Errorf("succeeded after %d writes", n-1)
			}
			return
		}
		if have := l.tuned(); have != before {
			t.Fatalf("after a failed write %d:\n%swant\n%s", n, have, before)
		}
	}
}

// TestResult: the result has the new MAC, and the new MTU of both ends. Without
// a change of either it is prevResult.
func TestResult(t *testing.T) {
	l := newList(t, bridge, everything, `{"type":"tuning","promisc":false}`)
	results := l.add()
	var before, after roles.Result
	for text, r := range map[string]*roles.Result{results[0]: &before, results[1]: &after} {
		if err := json.Unmarshal([]byte(text), r); err != nil {
			t.Fatal(err)
		}
	}
	if c := after.Interfaces[2]; c.Mac != "02:00:00:00:00:aa" || c.Mtu != 1400 || after.Interfaces[1].Mtu != 1400 || after.Interfaces[1].Mac != before.Interfaces[1].Mac || after.Interfaces[0].Mtu != 0 {
		t.Errorf("result %s", results[1])
	}
	if results[2] != results[1] {
		t.Errorf("the result is %s, prevResult was %s", results[2], results[1])
	}
}

// TestStack: a list may contain the role twice. DEL runs from the list's end.
func TestStack(t *testing.T) {
	l := newList(t, bridge, withoutMTU6, `{"type":"tuning","mac":"02:00:00:00:00:bb","mtu":1300,"txQLen":600,"sysctl":{"net.core.somaxconn":"600"}}`)
	first := l.run(l.call("ADD", 0, ""))
	before := l.tuned()
	second := l.run(l.call("ADD", 1, first))
	one := l.tuned()
	third := l.run(l.call("ADD", 2, second))
	if have := l.tuned(); have == one {
		t.Errorf("the second one has no effect: %s", have)
	}
	for _, i := range []int{0, 2} {
		l.run(l.call("CHECK", i, third))
	}
	l.run(l.call("DEL", 2, third))
	if have := l.tuned(); have != one {
		t.Errorf("after the second's DEL:\n%swant\n%s", have, one)
	}
	l.run(l.call("DEL", 1, third))
	if have := l.tuned(); have != before {
		t.Errorf("after the first's DEL:\n%swant\n%s", have, before)
	}
}

// TestPromiscNotAsked: promiscuous mode that another program turned on is
// ignored. The reference's CHECK fails.
func TestPromiscNotAsked(t *testing.T) {
	const mtu = `{"type":"tuning","mtu":1400}`
	for _, peers := range []bool{false, true} {
		l := newList(t, bridge, mtu)
		if peers {
			l.reference()
		}
		results := l.add()
		l.ns.Change(t, "eth0", netlink.SetPromiscOn)
		if !peers {
			l.run(l.call("CHECK", 1, results[1]))
			continue
		}
		c := l.call("CHECK", 1, results[1])
		cmd := exec.Command(filepath.Join(l.peers, "tuning"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND=CHECK", "CNI_CONTAINERID=c1", "CNI_NETNS="+c.Netns, "CNI_IFNAME=eth0", "CNI_PATH="+l.peers)
		cmd.Stdin = strings.NewReader(c.Conf)
		if out, err := cmd.Output(); err == nil || !strings.Contains(string(out), "promisc") {
			t.Errorf("the reference returns %s, %v", out, err)
		}
		l.run(l.call("DEL", 0, results[1]))
	}
}

// TestNames uses the interface names of the reference's scenario "ifname with
// `/`", and one with a dot, for which the reference uses a wrong sysctl path.
func TestNames(t *testing.T) {
	l := newList(t, bridge, `{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}`)
	for _, name := range []string{"eth/0", "..", "eth0:1"} {
		c := l.call("ADD", 1, `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}]}`)
		c.IfName = name
		l.Fail(c, 4)
	}
	add := func(i int, prev string) string {
		c := l.call("ADD", i, prev)
		c.IfName = "eth0.1"
		return l.run(c)
	}
	add(1, add(0, ""))
	l.ns.Do(t, func() error {
		v, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth0.1/arp_filter")
		if string(v) != "1\n" {
			t.Errorf("arp_filter is %q", v)
		}
		return err
	})
}

// TestAllowlist uses an administrator's list. ADD refuses all sysctls that it
// does not match at once and changes nothing. CHECK and DEL do not read it.
func TestAllowlist(t *testing.T) {
	if err := os.MkdirAll("/etc/cni", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/etc/cni", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount("/etc/cni", 0) //nolint:errcheck // ends with the mount namespace
	if err := os.Mkdir("/etc/cni/tuning", 0o755); err != nil {
		t.Fatal(err)
	}
	allow := func(text string) {
		t.Helper()
		if err := os.WriteFile("/etc/cni/tuning/allowlist.conf", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := newList(t, bridge, everything)
	first := l.run(l.call("ADD", 0, ""))
	before := l.tuned()
	allow("^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n")
	a := l.Fail(l.call("ADD", 1, first), 7)
	for _, name := range []string{"net.core.somaxconn", "net/ipv6/conf/IFNAME/mtu", "net.ipv4.ip_local_reserved_ports"} {
		if !strings.Contains(a.Stdout, name) {
			t.Errorf("%s is not named: %s", name, a.Stdout)
		}
	}
	if strings.Contains(a.Stdout, "arp_filter") || l.tuned() != before {
		t.Errorf("%s\n%s", a.Stdout, l.tuned())
	}
	allow("(")
	l.Fail(l.call("ADD", 1, first), 0)
	allow("net")
	result := l.run(l.call("ADD", 1, first))
	allow("")
	l.run(l.call("CHECK", 1, result))
	l.run(l.call("DEL", 1, result))
	if have := l.tuned(); have != before {
		t.Errorf("after DEL:\n%swant\n%s", have, before)
	}
}
