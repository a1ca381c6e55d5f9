package vrf_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// reference calls the reference plugin.
func reference(t *testing.T, c rolestest.Call) error {
	t.Helper()
	file, err := filepath.Abs("../../../bin/peers/vrf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	cmd := exec.Command(file)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns, "CNI_IFNAME="+c.IfName, "CNI_PATH=/")
	cmd.Stdin = strings.NewReader(c.Conf)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestReference shows the reference plugin's behaviour in cases in which ours is better.
// Each subtest names the test of ours.
func TestReference(t *testing.T) {
	red := map[string]any{"vrfname": "red"}
	t.Run("link gone", func(t *testing.T) { // TestLinkGone, PR #1282
		p := newPod(t)
		prev := p.interfaceOnly("eth0")
		if err := reference(t, p.vrf("ADD", "eth0", prev, red)); err != nil {
			t.Fatal(err)
		}
		p.ns.Do(t, func() error { return change("eth0", netlink.LinkDel) })
		if reference(t, p.vrf("DEL", "eth0", prev, red)) == nil {
			t.Error("DEL succeeds")
		}
		p.env.OK(p.vrf("DEL", "eth0", prev, red)) // ours does not block the chain
	})
	t.Run("behind ptp", func(t *testing.T) { // TestRole/ptp: the route to the gateway is of scope link
		p := newPod(t)
		ptp := p.bridge("ADD", "eth0")
		ptp.Type, ptp.Conf = "ptp", rolestest.WithKeys(t, behindPTP, map[string]any{"name": "net-eth0", "cniVersion": "1.1.0"})
		prev := p.env.OK(ptp)
		t.Cleanup(func() {
			ptp.Verb = "DEL"
			p.env.OK(ptp)
		})
		if reference(t, p.vrf("ADD", "eth0", prev, red)) == nil {
			t.Error("ADD succeeds")
		}
	})
	t.Run("taken over", func(t *testing.T) { // TestInherit
		p := newPod(t)
		prev := p.interfaceOnly("eth0")
		add := p.vrf("ADD", "eth0", prev, red)
		if err := reference(t, add); err != nil {
			t.Fatal(err)
		}
		p.env.OK(p.vrf("CHECK", "eth0", prev, red))
		bridge := p.bridge("CHECK", "eth0")
		bridge.Conf = rolestest.WithKeys(t, bridge.Conf, map[string]any{"prevResult": json.RawMessage(prev.Stdout)})
		p.env.OK(bridge)
		p.env.OK(p.vrf("DEL", "eth0", prev, red))
		for _, line := range p.inside() {
			if strings.HasPrefix(line, "vrf") || strings.Contains(line, `in "red"`) {
				t.Errorf("left: %s", line)
			}
		}
	})
}
