package dispatch

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

func TestFaults(t *testing.T) {
	tests := []struct {
		name  string
		env   map[string]string
		args  []string
		stdin string
		code  uint
		msg   []string
	}{
		{name: "unknown verb", env: map[string]string{"CNI_COMMAND": "FROB"}, code: 4, msg: []string{"CNI_COMMAND", `"FROB"`}},
		{
			name: "all missing variables in one message", env: map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""},
			code: 4, msg: []string{"required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME] missing"},
		},
		{name: "DEL needs no namespace", env: map[string]string{"CNI_COMMAND": "DEL", "CNI_NETNS": "", "CNI_IFNAME": ""}, code: 4, msg: []string{"[CNI_IFNAME] missing"}},
		{name: "GC needs CNI_PATH", env: map[string]string{"CNI_COMMAND": "GC", "CNI_PATH": ""}, code: 4, msg: []string{"[CNI_PATH] missing"}},
		{name: "missing variables come before a bad configuration", env: map[string]string{"CNI_IFNAME": ""}, stdin: "{", code: 4, msg: []string{"CNI_IFNAME"}},
		{name: "container ID leaves the directory", env: map[string]string{"CNI_CONTAINERID": "../x"}, code: 4, msg: []string{"CNI_CONTAINERID", "../x"}},
		{name: "container ID with NUL", env: map[string]string{"CNI_CONTAINERID": "a\x00b"}, code: 4, msg: []string{"CNI_CONTAINERID"}},
		{name: "container ID with a slash", env: map[string]string{"CNI_CONTAINERID": "a/b"}, code: 4, msg: []string{"CNI_CONTAINERID"}},
		{name: "container ID in another script", env: map[string]string{"CNI_CONTAINERID": "añb"}, code: 4, msg: []string{"CNI_CONTAINERID"}},
		{name: "both at once", env: map[string]string{"CNI_CONTAINERID": "-a", "CNI_IFNAME": "a/b"}, code: 4, msg: []string{"CNI_CONTAINERID", "CNI_IFNAME"}},
		{name: "interface name of 16 bytes", env: map[string]string{"CNI_IFNAME": "0123456789abcdef"}, code: 4, msg: []string{"CNI_IFNAME", "15"}},
		{name: "interface name ..", env: map[string]string{"CNI_IFNAME": ".."}, code: 4, msg: []string{"CNI_IFNAME"}},
		{name: "interface name with colon", env: map[string]string{"CNI_IFNAME": "eth0:1"}, code: 4, msg: []string{"CNI_IFNAME"}},
		{name: "interface name that is not UTF-8", env: map[string]string{"CNI_IFNAME": "eth\xff"}, code: 4, msg: []string{"CNI_IFNAME", "UTF-8"}},
		{name: "interface name all", env: map[string]string{"CNI_IFNAME": "all"}, code: 4, msg: []string{"CNI_IFNAME", `"all"`}},
		{name: "interface name default", env: map[string]string{"CNI_IFNAME": "default"}, code: 4, msg: []string{"CNI_IFNAME", `"default"`}},
		{name: "interface name that is a pattern", env: map[string]string{"CNI_IFNAME": "eth%d"}, code: 4, msg: []string{"CNI_IFNAME", "%"}},
		{name: "interface name with the kernel's other space", env: map[string]string{"CNI_IFNAME": "eth\u00e0"}, code: 4, msg: []string{"CNI_IFNAME"}},
		{name: "interface name with white space", env: map[string]string{"CNI_IFNAME": "eth\t0"}, code: 4, msg: []string{"CNI_IFNAME"}},
		{name: "argument without value", env: map[string]string{"CNI_ARGS": "IP"}, code: 4, msg: []string{"CNI_ARGS", `"IP"`}},
		{name: "unknown arguments", env: map[string]string{"CNI_ARGS": "FOO=1;IP=10.0.0.1;BAR=2"}, code: 4, msg: []string{"[FOO,BAR]", "IgnoreUnknown"}},
		{name: "unknown argument of CHECK", env: map[string]string{"CNI_COMMAND": "CHECK", "CNI_ARGS": "FOO=1"}, code: 4, msg: []string{"FOO"}},
		{name: "no configuration", stdin: " ", code: 6, msg: []string{"network configuration"}},
		{name: "broken configuration", stdin: `{"name":`, code: 6},
		{name: "two configurations", stdin: `{"name":"a"}{"name":"b"}`, code: 6},
		{name: "a list", stdin: `[]`, code: 6},
		{name: "version is a number", stdin: `{"cniVersion":1,"name":"net"}`, code: 6},
		{name: "too large", stdin: `{"name":"net","x":"` + strings.Repeat("x", maxConf) + `"}`, code: 6, msg: []string{"4194304"}},
		{name: "no name", stdin: `{"cniVersion":"1.1.0"}`, code: 7, msg: []string{"name: is missing"}},
		{name: "null", stdin: `null`, code: 7, msg: []string{"name"}},
		{name: "hostile name", stdin: `{"cniVersion":"1.1.0","name":"../../etc"}`, code: 7, msg: []string{"name", "../../etc"}},
		{name: "long hostile name", stdin: `{"cniVersion":"1.1.0","name":"/` + strings.Repeat("x", 10000) + `"}`, code: 7},
		{name: "name comes before version", stdin: `{"cniVersion":"9.9.9"}`, code: 7, msg: []string{"name"}},
		{name: "future version", stdin: `{"cniVersion":"1.2.0","name":"net"}`, code: 1, msg: []string{"1.2.0", "1.1.0"}},
		{name: "CHECK before 0.4.0", env: map[string]string{"CNI_COMMAND": "CHECK"}, stdin: `{"cniVersion":"0.3.1","name":"net"}`, code: 1, msg: []string{"CHECK", "0.4.0"}},
		{name: "STATUS before 1.1.0", env: map[string]string{"CNI_COMMAND": "STATUS"}, stdin: `{"cniVersion":"1.0.0","name":"net"}`, code: 1, msg: []string{"STATUS", "1.1.0"}},
		{name: "GC before 1.1.0", env: map[string]string{"CNI_COMMAND": "GC"}, stdin: `{"cniVersion":"1.0.0","name":"net"}`, code: 1, msg: []string{"GC", "1.1.0"}},
		{name: "no role of that type", args: []string{"cnibox"}, stdin: `{"cniVersion":"1.1.0","name":"net","type":"two"}`, code: 7, msg: []string{"type", `"two"`}},
		{name: "prevResult is a text", stdin: `{"cniVersion":"1.1.0","name":"net","prevResult":"x"}`, code: 6, msg: []string{"prevResult"}},
		{name: "VERSION of garbage", env: map[string]string{"CNI_COMMAND": "VERSION"}, stdin: `{`, code: 6},
		{name: "own namespace, ADD", env: map[string]string{"CNI_NETNS": "/proc/self/ns/net"}, code: 8, msg: []string{"CNI_NETNS_OVERRIDE"}},
		{name: "own namespace, CHECK", env: map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_COMMAND": "CHECK"}, code: 8},
		{name: "own namespace, DEL", env: map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_COMMAND": "DEL"}, code: 8},
		{name: "own namespace by another path", env: map[string]string{"CNI_NETNS": fmt.Sprintf("/proc/%d/task/../ns/net", os.Getpid())}, code: 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &actor{name: "one"}
			w := newWorld(a)
			for k, v := range tt.env {
				w.set(k, v)
			}
			if tt.stdin != "" {
				w.stdin = tt.stdin
			}
			if tt.args != nil {
				w.args = tt.args
			}
			o := w.call(t).failure(t)
			if o.Code != tt.code {
				t.Errorf("code %d, want %d: %s", o.Code, tt.code, o.Msg)
			}
			for _, m := range tt.msg {
				if !strings.Contains(o.Msg, m) {
					t.Errorf("message %q lacks %q", o.Msg, m)
				}
			}
			if len(o.Msg) > 1000 {
				t.Errorf("message of %d bytes", len(o.Msg))
			}
			if len(a.calls) != 0 {
				t.Errorf("the role was called: %v", a.calls)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	tests := []struct {
		name  string
		env   map[string]string
		stdin string
	}{
		{name: "plain"},
		{name: "no CNI_PATH", env: map[string]string{"CNI_PATH": ""}},
		{name: "long container ID", env: map[string]string{"CNI_CONTAINERID": strings.Repeat("a", 10000)}},
		{name: "interface name of 15 bytes", env: map[string]string{"CNI_IFNAME": "0123456789abcde"}},
		{name: "known arguments", env: map[string]string{"CNI_ARGS": "IP=10.0.0.1;MAC=02:00:00:00:00:01;K8S_POD_NAME=a=b;"}},
		{name: "unknown arguments allowed", env: map[string]string{"CNI_ARGS": "IgnoreUnknown=true;FOO=1"}},
		{name: "no version", stdin: `{"name":"net"}`},
		{name: "unknown keys", stdin: `{"cniVersion":"1.1.0","name":"net","capabilities":{"x":true},"future":{}}`},
		{name: "own namespace, overridden", env: map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "1"}},
		{name: "own namespace, overridden by a word", env: map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "true"}},
		{name: "DEL without namespace", env: map[string]string{"CNI_COMMAND": "DEL", "CNI_NETNS": ""}},
		{name: "DEL with a namespace that is gone", env: map[string]string{"CNI_COMMAND": "DEL"}},
		{name: "DEL with an unknown argument", env: map[string]string{"CNI_COMMAND": "DEL", "CNI_ARGS": "FOO=1"}},
		{name: "DEL with an argument without value", env: map[string]string{"CNI_COMMAND": "DEL", "CNI_ARGS": "nonsense"}},
		{name: "GC with an unknown argument", env: map[string]string{"CNI_COMMAND": "GC", "CNI_ARGS": "FOO=1;nonsense"}, stdin: `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`},
		{name: "STATUS needs nothing", env: map[string]string{"CNI_COMMAND": "STATUS", "CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_PATH": ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &actor{name: "one"}
			w := newWorld(a)
			for k, v := range tt.env {
				w.set(k, v)
			}
			if tt.stdin != "" {
				w.stdin = tt.stdin
			}
			w.call(t).success(t)
			if len(a.calls) != 1 {
				t.Errorf("calls of the role: %v, want one", a.calls)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	a := &actor{name: "one"}
	w := newWorld(a).set("CNI_COMMAND", "CHECK").set("CNI_ARGS", "IP=10.0.0.9").set("CNI_PATH", "/a::/b")
	w.stdin = `{"cniVersion":"0.4.0","name":"net","prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.9/24"}]}}`
	w.call(t).success(t)
	got := a.last
	want := &roles.Request{
		Verb: roles.Check, ContainerID: "abc", Netns: "/nonexistent/netns", IfName: "eth0", Path: []string{"/a", "/b"},
		Network: "net", CNIVersion: "0.4.0", Conf: []byte(w.stdin), Env: w.env, Args: got.Args, PrevResult: got.PrevResult,
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b roles.Args) bool { return a.String() == b.String() })); diff != "" {
		t.Error(diff)
	}
	if got.Args.Get("IP") != "10.0.0.9" {
		t.Errorf("args %v", got.Args)
	}
	if p := got.PrevResult; p == nil || len(p.IPs) != 1 || p.IPs[0].Address.String() != "10.0.0.9/24" || p.CNIVersion != roles.ResultVersion {
		t.Errorf("prevResult %v", p)
	}
	if a.host.Role != "one" || a.host.Delegate == nil {
		t.Errorf("host %+v", a.host)
	}
}
