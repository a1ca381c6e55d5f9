package process

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/nftlist"
)

// hidePrograms makes the programs of iptables and nftables not executable, and runs its arguments.
const hidePrograms = `
for f in /sbin/*tables* /usr/sbin/*tables* /usr/local/sbin/*tables* /sbin/nft /usr/sbin/nft /usr/bin/nft; do
	[ ! -x "$f" ] || mount --bind /dev/null "$f"
done
for p in iptables ip6tables iptables-legacy iptables-nft iptables-save nft; do
	! command -v $p || exit 70
done
exec "$@"`

// TestExamplesTogether attaches a container to each example on one node. No network breaks another
// one: CHECK of every attachment succeeds afterwards. The examples that are left out need a device
// that the kernel may lack, a cloud, or a DHCP server. flannel.conflist is another form of
// vxlan.conflist. The node has no program of iptables or nftables: cnibox speaks to the kernel, as on a
// distribution without them.
func TestExamplesTogether(t *testing.T) {
	node, dir := netopstest.New(t), t.TempDir()
	node.Do(t, func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"})
		return errors.Join(err, netopstest.LinkUp("lo", "203.0.113.7/32"), netopstest.LinkUp("eth0"), netopstest.LinkUp("eth1"))
	})
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	overlay := &store.Overlay{BootID: strings.TrimSpace(string(boot)), Ready: true, IPMasq: true, MTU: 1450, IPv4: &store.OverlayFamily{
		Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Subnet: netip.MustParsePrefix("10.244.1.0/24"), MTU: 1450,
	}}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.WriteOverlay(filepath.Join(dir, "run", store.OverlayFile), overlay); err != nil {
		t.Fatal(err)
	}
	examples := []string{"bridge", "bridge-dual", "published", "chain", "l2", "static", "sticky", "ptp", "egress", "routed", "tap", "macvlan", "sbr", "multi", "vxlan"}
	containers := map[string]*netopstest.NS{}
	for _, name := range examples {
		containers[name] = netopstest.New(t)
	}
	cnibox := func(args ...string) error {
		cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-euc", hidePrograms, "sh", filepath.Join(binDir, "cnibox")}, args...)...)
		cmd.Env = append(os.Environ(), "CNI_PATH="+binDir, "CNIBOX_RUN_DIR="+filepath.Join(dir, "run"), "CNIBOX_STATE_DIR="+filepath.Join(dir, "state"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cnibox %s: %w\n%s", args[0], err, out)
		}
		return nil
	}
	for _, verb := range []string{"add", "check", "list", "del"} {
		if verb == "list" {
			t.Run("ListedByOtherNFT", func(t *testing.T) {
				programs := nftlist.Find(t) // it skips the test, which a function of Do must not
				node.Do(t, programs.Check)
			})
			// A node that saves its rules to /etc/nftables.conf starts with them.
			t.Run("LoadedByOtherNFT", func(t *testing.T) {
				programs := nftlist.Find(t)
				node.Do(t, func() error { return programs.Reload(func() error { return cnibox("diff") }) })
			})
			continue
		}
		for _, name := range examples {
			conf, err := filepath.Abs("../../../examples/" + name + ".conflist")
			if err != nil {
				t.Fatal(err)
			}
			node.Do(t, func() error {
				if err := cnibox(verb, conf, name, containers[name].Path()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				return nil
			})
		}
	}
}
