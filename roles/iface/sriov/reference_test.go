package sriov_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// cache is where sriov-cni keeps its files.
const cache = "/var/lib/cni/sriov"

// attached makes what ADD of sriov-cni makes: the settings at the card, the interface eth0 of a container, and its files.
func (r *rig) attached(id string, f netopstest.Function, netns string) {
	t := r.t
	t.Helper()
	pf, err := netlink.LinkByName(r.card)
	must(t, err)
	own, err := netlink.LinkByName(f.Link)
	must(t, err)
	was := pf.Attrs().Vfs[f.Number]
	must(t, netlink.LinkSetVfVlanQos(pf, f.Number, 100, 3))
	mac := []byte{2, 0, 0, 0, 0, 0x21}
	must(t, netlink.LinkSetVfHardwareAddr(pf, f.Number, mac))
	must(t, netlink.LinkSetVfSpoofchk(pf, f.Number, false))
	must(t, netlink.LinkSetVfTrust(pf, f.Number, true))
	fd, err := os.Open(r.spaces[id].Path())
	must(t, err)
	defer fd.Close()
	must(t, netlink.LinkSetDown(own))
	must(t, netlink.LinkSetNsFd(own, int(fd.Fd())))
	r.spaces[id].Rename(t, f.Link, "eth0")
	r.spaces[id].Change(t, "eth0", func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetHardwareAddr(l, mac), netlink.LinkSetUp(l))
	})
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "functions", "type": "sriov", "ipam": map[string]any{}, "dns": map[string]any{},
		"OrigVfState": map[string]any{
			"HostIFName": f.Link, "SpoofChk": was.Spoofchk, "Trust": was.Trust != 0, "AdminMAC": was.Mac.String(), "EffectiveMAC": own.Attrs().HardwareAddr.String(),
			"Vlan": was.Vlan, "VlanQoS": was.Qos, "VlanProto": was.VlanProto, "MinTxRate": was.MinTxRate, "MaxTxRate": was.MaxTxRate, "LinkState": was.LinkState, "MTU": own.Attrs().MTU,
		},
		"Master": r.card, "MAC": "02:00:00:00:00:21", "MTU": 1500, "vlan": 100, "vlanQoS": 3, "vlanProto": "802.1q", "deviceID": f.Device, "VFID": f.Number,
		"min_tx_rate": nil, "max_tx_rate": nil, "spoofchk": "off", "trust": "on", "runtimeConfig": map[string]any{"mac": "02:00:00:00:00:21"},
	})
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(cache, "pci/vf_lock"), 0o700))
	must(t, os.WriteFile(filepath.Join(cache, id+"-eth0"), text, 0o600))
	must(t, os.WriteFile(filepath.Join(cache, "pci", f.Device), []byte(netns), 0o600))
}

// files returns the files of sriov-cni.
func files(t *testing.T) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, cache+"/"))
		}
		return err
	}))
	return all
}

// TestReference: DEL gives back a VF that sriov-cni attached, as its file says, also after the end of the namespace.
func TestReference(t *testing.T) {
	r := newRig(t)
	f := r.f[0]
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	c := conf(f, "")
	isBack := func() bool { _, err := netlink.LinkByName("eth0"); return err == nil }
	for _, v := range []struct {
		name string
		// before is called between both calls, and returns what DEL has for CNI_NETNS.
		before func(netns string) string
	}{
		{"namespace", func(netns string) string { return netns }},
		{"other settings", func(netns string) string {
			r.spaces["c1"].Change(t, "eth0", netopstest.SmallerMTU)
			r.spaces["c1"].Change(t, "eth0", netopstest.OtherMAC)
			return netns
		}},
		{"namespace gone", func(netns string) string {
			r.spaces["c1"].Remove(t)
			await.Until(t, isBack, func() string { return "the kernel does not return the interface" })
			return netns
		}},
		{"no CNI_NETNS", func(string) string {
			r.spaces["c1"].Remove(t)
			await.Until(t, isBack, func() string { return "the kernel does not return the interface" })
			return ""
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			before := r.State(nil)
			r.spaces["c1"] = netopstest.New(t)
			del := r.call("DEL", "c1", c)
			r.attached("c1", f, del.Netns)
			del.Netns = v.before(del.Netns)
			r.OK(del)
			r.same(before, "after DEL")
			if left := files(t); len(left) > 0 {
				t.Errorf("files are left: %q", left)
			}
			r.OK(del)
		})
	}
}

// TestReferenceKept: a file that is damaged changes nothing, and neither does one of a container whose VF another has by now.
func TestReferenceKept(t *testing.T) {
	r := newRig(t)
	f := r.f[0]
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	before := r.State(nil)
	c := conf(f, "")
	old, now := r.call("DEL", "old", c), r.call("DEL", "now", c)
	r.attached("now", f, now.Netns)
	held := r.State(nil)
	good, err := os.ReadFile(filepath.Join(cache, "now-eth0"))
	must(t, err)
	file := filepath.Join(cache, "old-eth0")
	for text, want := range map[string]string{
		string(good[:len(good)/2]): "unexpected end of JSON input",
		"":                         "unexpected end of JSON input",
		strings.ReplaceAll(string(good), f.Device, "../../etc"):                 "is not a PCI address",
		strings.Replace(string(good), `"HostIFName":"`, `"HostIFName":"../`, 1): "is not an interface name",
		strings.Replace(string(good), `"AdminMAC":"`, `"AdminMAC":"zz`, 1):      "is not a MAC address",
		strings.Replace(string(good), `"Vlan":`, `"Vlan":-1`, 1):                "OrigVfState.Vlan",
		strings.Replace(string(good), `"LinkState":`, `"LinkState":7`, 1):       "OrigVfState.LinkState",
		strings.Replace(string(good), `"name":"functions"`, `"name":["a"]`, 1):  "cannot unmarshal",
	} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		r.mentions(r.Fail(old, 0), want)
		r.same(held, "after DEL with "+text)
		if left := files(t); len(left) != 3 {
			t.Errorf("files: %q", left)
		}
	}
	for _, netns := range []string{old.Netns, ""} {
		must(t, os.WriteFile(file, good, 0o600))
		gone := old
		gone.Netns = netns
		r.OK(gone)
		r.same(held, "after DEL of the former container")
		if left := files(t); len(left) != 2 {
			t.Errorf("files: %q", left)
		}
	}
	must(t, os.WriteFile(file, []byte(strings.Replace(string(good), `"name":"functions"`, `"name":"other"`, 1)), 0o600))
	r.OK(old)
	if left := files(t); len(left) != 3 {
		t.Errorf("a file of another network: %q", left)
	}
	must(t, os.Remove(file))
	r.OK(now)
	r.same(before, "after DEL")

	r.OK(r.call("ADD", "now", c))
	held = r.State(nil)
	must(t, os.WriteFile(file, good, 0o600))
	r.OK(old)
	r.same(held, "after DEL of the former container of a VF that cnibox attached")
	if left := files(t); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
	r.OK(now)
	r.same(before, "at the end")
}
