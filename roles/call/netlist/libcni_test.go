package netlist_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/netlist"
)

// recording is a plugin that notes how it is called.
const recording = `#!/bin/sh
conf=$(cat)
echo "$CNI_COMMAND $(basename "$0") $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS|$conf" >> "$LOG"
if [ "$CNI_COMMAND" = ADD ]; then
	case $VERSION in
	0.[12].0) echo '{"cniVersion":"'$VERSION'","ip4":{"ip":"10.0.0.'$(basename "$0" | tr abc 123)'/24"},"dns":{}}' ;;
	*) echo '{"cniVersion":"'$VERSION'","interfaces":[{"name":"'$(basename "$0")'"}],"dns":{}}' ;;
	esac
fi
`

// TestLibcni: plugins are called as libcni calls them, in its order and with its
// configurations.
func TestLibcni(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(recording), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, keys := range []string{"", `"disableCheck":true,`, `"disableGC":"true",`} {
			t.Run(version+" "+keys, func(t *testing.T) {
				t.Setenv("VERSION", version)
				list := fmt.Sprintf(`{%s"cniVersion":%q,"name":"n","plugins":[{"type":"a","capabilities":{"ips":true,"mac":false},"x":{"y":[1]}},{"type":"b","name":"own","capabilities":{"mac":true}},{"type":"c"}]}`, keys, version)
				log := func(name string) []string {
					file := filepath.Join(t.TempDir(), name)
					t.Setenv("LOG", file)
					return []string{file}
				}
				theirs := log("theirs")
				runLibcni(t, dir, list)
				ours := log("ours")
				runNetlist(t, dir, list)
				if diff := cmp.Diff(calls(t, theirs[0]), calls(t, ours[0])); diff != "" {
					t.Errorf("-libcni +ours:\n%s", diff)
				}
			})
		}
	}
}

// calls are what the plugins noted, their configurations decoded.
func calls(t *testing.T, file string) (out []any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		call, conf, _ := strings.Cut(line, "|")
		var v map[string]any
		if err := json.Unmarshal([]byte(conf), &v); err != nil {
			t.Fatal(err)
		}
		if prev, ok := v["prevResult"].(map[string]any); ok {
			delete(prev, "dns") // libcni writes an empty one
		}
		out = append(out, call, v)
	}
	return out
}

func runLibcni(t *testing.T, dir, raw string) {
	t.Helper()
	c := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
	l, err := libcni.NetworkConfFromBytes([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	rt := &libcni.RuntimeConf{ContainerID: "id", NetNS: "/ns", IfName: "eth0", Args: [][2]string{{"K", "V"}}, CapabilityArgs: map[string]any{"ips": []string{"10.0.0.1"}, "mac": "x", "other": 1}}
	if _, err := c.AddNetworkList(t.Context(), l, rt); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckNetworkList(t.Context(), l, rt); err != nil && l.CNIVersion >= "0.4.0" {
		t.Fatal(err)
	}
	valid := []types.GCAttachment{{ContainerID: "id", IfName: "eth0"}}
	for _, err := range []error{c.GCNetworkList(t.Context(), l, &libcni.GCArgs{ValidAttachments: valid}), c.GetStatusNetworkList(t.Context(), l), c.DelNetworkList(t.Context(), l, rt)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func runNetlist(t *testing.T, dir, raw string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	d := dispatch.NewDelegator(dispatch.Process{Executable: "/proc/self/exe", Stderr: io.Discard}, &roles.Host{Role: "runtime", Log: quiet}, quiet)
	l, err := netlist.Parse([]byte(raw), "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	args, err := roles.ParseArgs("K=V")
	if err != nil {
		t.Fatal(err)
	}
	call := netlist.Call{
		Request: &roles.Request{ContainerID: "id", Netns: "/ns", IfName: "eth0", Args: args, Path: []string{dir}, Env: os.Environ()},
		Runtime: map[string]json.RawMessage{"ips": json.RawMessage(`["10.0.0.1"]`), "mac": json.RawMessage(`"x"`), "other": json.RawMessage(`1`)},
	}
	if call.Result, err = l.Add(t.Context(), d, call); err != nil {
		t.Fatal(err)
	}
	gc := call
	gc.Request = &roles.Request{Path: []string{dir}, Env: os.Environ()} // a runtime has no arguments for it
	for _, err := range []error{
		l.Check(t.Context(), d, call), l.GC(t.Context(), d, gc, []roles.AttachmentID{{ContainerID: "id", IfName: "eth0"}}),
		l.Status(t.Context(), d, gc), l.Del(t.Context(), d, call),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}
