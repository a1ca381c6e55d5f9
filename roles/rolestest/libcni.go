package rolestest

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// nodeExec executes plugins for libcni with the environment of a test's node.
type nodeExec struct {
	*invoke.DefaultExec
	env *Env
}

func (x nodeExec) ExecPlugin(ctx context.Context, file string, stdin []byte, environ []string) ([]byte, error) {
	return x.DefaultExec.ExecPlugin(ctx, file, stdin, slices.Concat(environ, x.env.environ()))
}

// oldLists runs a chained role's list through libcni, in the versions whose results
// consist of addresses. ADD makes the same objects as in the newest version. Other configurations have no such list.
func (s Suite) oldLists(t *testing.T, c Conf) {
	if c.Chain == "" || c.NoAddress {
		return
	}
	var want string
	t.Run("newest", func(t *testing.T) {
		b := s.bench(t, c)
		b.warm()
		b.OK(b.call("ADD"))
		want = b.kernel()
	})
	for _, version := range []string{"", "0.1.0", "0.2.0"} {
		t.Run("version "+version, func(t *testing.T) {
			b := s.bench(t, c)
			start := b.warm()
			list, err := libcni.NetworkConfFromBytes([]byte(b.list(b.call("ADD")).Conf))
			if err != nil {
				t.Fatal(err)
			}
			list.CNIVersion = version
			runtime := libcni.NewCNIConfigWithCacheDir([]string{b.PluginDir()}, t.TempDir(), nodeExec{&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}, b.Env})
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: b.ns.Path(), IfName: "eth0"}
			if _, err := runtime.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, b.kernel()); diff != "" {
				t.Errorf("ADD's objects, -version %s +version %q:\n%s", newest, version, diff)
			}
			if err := runtime.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			b.same(start, "after DEL")
		})
	}
}

// randomMAC finds a MAC in a line of netopstest.Snapshot. Bridges and the test's own devices
// have random ones.
var randomMAC = regexp.MustCompile(`(?m)^(link .* mac )\S+`)

// kernel returns the kernel's state without random names and MACs of the host.
func (b *bench) kernel() string {
	b.t.Helper()
	host := slices.DeleteFunc(strings.Split(netopstest.Snapshot(b.t), "\n"), func(line string) bool { return strings.HasPrefix(line, "netns ") })
	return randomMAC.ReplaceAllString(strings.Join(host, "\n"), "$1") + "\ncontainer:\n" + b.ns.Snapshot(b.t)
}
