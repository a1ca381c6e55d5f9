package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
)

// product returns the command line with all roles of cnibox.
func product(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	dir := t.TempDir()
	p := Process{
		Table: all.Table(), Args: args, Env: []string{"CNI_PATH=" + dir}, Stdout: &out, Stderr: &errs,
		Version: "test", Executable: "/proc/self/exe",
	}
	p.OpenHost = func(ctx context.Context, role string) (*roles.Host, func(), error) {
		h, done, err := node.Open(ctx, node.Options{RunDir: dir + "/run", StateDir: dir + "/lib", Role: role, Program: "test", Reference: migrate.ReferencePlugins{}})
		if err == nil {
			h.Delegate = dispatch.NewDelegator(dispatch.Process{Table: p.Table, Executable: p.Executable, Env: p.Env}, h, slog.New(slog.DiscardHandler))
		}
		return h, done, err
	}
	install := p
	install.Args = []string{"install", "--dir", dir}
	if code := Main(t.Context(), install); code != ExitOK {
		t.Fatalf("install: exit code %d\n%s", code, errs.String())
	}
	out.Reset()
	code = Main(t.Context(), p)
	return code, out.String(), errs.String()
}

// TestExamples: lint finds no fault in the shipped examples, and they can be planned on a
// machine with the devices eth0, eth1 and eth2, and the address of egress.conflist. The machine has no virtual
// function of a card, and its kernel may have no netkit, and the plan says so.
func TestExamples(t *testing.T) {
	var files []string
	for _, dir := range []string{"examples", "examples/kubernetes"} {
		found, err := filepath.Glob("../../" + dir + "/*.conflist")
		if err != nil || len(found) == 0 {
			t.Fatalf("no examples in %s: %v", dir, err)
		}
		files = append(files, found...)
	}
	code, out, errs := product(t, "lint", "../../examples")
	if code != ExitOK || out != "" || errs != "" {
		t.Errorf("lint: exit code %d\n%s%s", code, out, errs)
	}
	machine := netopstest.New(t)
	machine.Do(t, func() error {
		return errors.Join(
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}),
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth2"}, PeerName: "wire2"}),
			netopstest.LinkUp("eth0", "203.0.113.7/32"))
	})
	absent := map[string]string{"ovs.conflist": `ovs: open vswitch: does not exist: no ovsdb-server listens on /var/run/openvswitch/db.sock`, "sriov.conflist": `sriov: deviceID: device "/sys/bus/pci/devices/0000:03:02.1": does not exist`}
	if n := netops.New(netops.Options{}); n.HasKind(t.Context(), "netkit") != nil {
		absent["netkit.conflist"] = `ptp: linkType: "netkit" needs Linux 6.7`
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var code int
			var out, errs string
			machine.Do(t, func() error {
				code, out, errs = product(t, "plan", file)
				return nil
			})
			missing := absent[filepath.Base(file)]
			if missing != "" {
				if code == ExitOK || !strings.Contains(errs, missing) {
					t.Errorf("plan: exit code %d, %q, want %q", code, errs, missing)
				}
			} else if code != ExitOK || len(out) < 20 {
				t.Errorf("plan: exit code %d\n%s%s", code, out, errs)
			}
			t.Log(out)
		})
	}
}

// TestProductVerbs: no verb has the name of a role, except that the name of a daemon may
// be followed by the daemon's verbs.
func TestProductVerbs(t *testing.T) {
	p := Process{Table: all.Table()}
	for _, c := range p.root().Subcommands {
		for _, r := range p.Table.Roles() {
			others := len(c.Subcommands) == 0 || slices.ContainsFunc(c.Subcommands, func(sub *cli.Command) bool { return r.Verb(c.Name+" "+sub.Name) == nil })
			if slices.Contains(r.Names, c.Name) && others {
				t.Errorf("verb %q is named like a role", c.Name)
			}
		}
	}
}
