package netops

import (
	"encoding/json"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// everyVFSetting sets all that a role can set.
func everyVFSetting() *VF {
	return &VF{
		Link: "pf0", Number: 3, Device: "0000:03:10.6", MAC: "02:00:00:00:00:07", VLAN: &VFVLAN{ID: 100, QoS: 5, Outer: true},
		Rate: &VFRate{Min: 10, Max: 100}, SpoofCheck: "off", Trust: "on", LinkState: "disable",
	}
}

// TestVFDifference: only settings that differ are made, and their present values are restored. A setting that the driver does not
// report is made and not restored.
func TestVFDifference(t *testing.T) {
	on, off := true, false
	present := func(f rtnl.VF) *VF { return presentVF("pf0", &f) }
	fresh := rtnl.VF{Number: 3, MAC: make(net.HardwareAddr, 6), VLAN: rtnl.VFVLAN{Protocol: unix.ETH_P_8021Q}, SpoofCheck: &on, Trust: &off}
	mute := fresh
	mute.SpoofCheck, mute.Trust, mute.LinkState = nil, nil, 77
	done := fresh
	done.MAC, done.VLAN = net.HardwareAddr{2, 0, 0, 0, 0, 7}, rtnl.VFVLAN{ID: 100, QoS: 5, Protocol: unix.ETH_P_8021AD}
	done.MinRate, done.MaxRate, done.SpoofCheck, done.Trust, done.LinkState = 10, 100, &off, &on, 2
	const all = "vf 3 dev pf0 vlan 100 qos 5 proto 802.1ad mac 02:00:00:00:00:07 rate min_tx_rate 10 max_tx_rate 100 spoofchk off trust on state disable"
	for _, c := range []struct {
		name     string
		v        *VF
		f        rtnl.VF
		own      *rtnl.Link
		set, old string
	}{
		{"fresh", everyVFSetting(), fresh, nil, all, "vf 3 dev pf0 vlan 0 mac 00:00:00:00:00:00 rate min_tx_rate 0 max_tx_rate 0 spoofchk on trust off state auto"},
		{"not reported", everyVFSetting(), mute, nil, all, "vf 3 dev pf0 vlan 0 mac 00:00:00:00:00:00 rate min_tx_rate 0 max_tx_rate 0"},
		{"as wanted", everyVFSetting(), done, nil, "vf 3 dev pf0 unchanged", "vf 3 dev pf0 unchanged"},
		{"own address differs", everyVFSetting(), done, &rtnl.Link{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 8}}, "vf 3 dev pf0 mac 02:00:00:00:00:07", "vf 3 dev pf0 unchanged"},
		{"nothing wanted", &VF{Link: "pf0", Number: 3}, done, &rtnl.Link{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 8}}, "vf 3 dev pf0 unchanged", "vf 3 dev pf0 unchanged"},
		{"no VLAN", &VF{Link: "pf0", Number: 3, VLAN: &VFVLAN{}}, done, nil, "vf 3 dev pf0 vlan 0", "vf 3 dev pf0 vlan 100 qos 5 proto 802.1ad"},
		{"no VLAN, none there", &VF{Link: "pf0", Number: 3, VLAN: &VFVLAN{}}, fresh, nil, "vf 3 dev pf0 unchanged", "vf 3 dev pf0 unchanged"},
		{"other priority", &VF{Link: "pf0", Number: 3, VLAN: &VFVLAN{ID: 100, Outer: true}}, done, nil, "vf 3 dev pf0 vlan 100 qos 0 proto 802.1ad", "vf 3 dev pf0 vlan 100 qos 5 proto 802.1ad"},
		{"other protocol", &VF{Link: "pf0", Number: 3, VLAN: &VFVLAN{ID: 100, QoS: 5}}, done, nil, "vf 3 dev pf0 vlan 100 qos 5 proto 802.1Q", "vf 3 dev pf0 vlan 100 qos 5 proto 802.1ad"},
		{"no limit", &VF{Link: "pf0", Number: 3, Rate: &VFRate{}}, done, nil, "vf 3 dev pf0 rate min_tx_rate 0 max_tx_rate 0", "vf 3 dev pf0 rate min_tx_rate 10 max_tx_rate 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, old := c.v.difference(present(c.f), c.own)
			if set.String() != c.set {
				t.Errorf("set  %s\nwant %s", set, c.set)
			}
			if old.String() != c.old {
				t.Errorf("old  %s\nwant %s", old, c.old)
			}
		})
	}
}

// TestVFOutdated: an inverse restores what differs. An address that the VF chose itself is not administrative.
func TestVFOutdated(t *testing.T) {
	const own, other, none = "02:00:00:00:00:01", "02:00:00:00:00:02", "00:00:00:00:00:00"
	for _, c := range []struct {
		name          string
		old, now      string
		ownInterface  bool
		vlan, nowVLAN int
		want          string
	}{
		{"as it was", own, own, true, 5, 5, "vf 3 dev pf0 unchanged"},
		{"changed", own, other, true, 0, 5, "vf 3 dev pf0 vlan 0 mac " + own},
		{"the VF's own", none, own, true, 0, 5, "vf 3 dev pf0 vlan 0"},
		{"the container's", none, other, true, 5, 5, "vf 3 dev pf0 mac " + none},
		{"of a program in userspace", none, own, false, 5, 5, "vf 3 dev pf0 mac " + none},
	} {
		inverse := &VF{Link: "pf0", Number: 3, MAC: c.old, VLAN: &VFVLAN{ID: c.vlan}}
		if c.ownInterface {
			inverse.Own = &VFLink{MAC: own}
		}
		if have := inverse.outdated(&VF{MAC: c.now, VLAN: &VFVLAN{ID: c.nowVLAN}}); have.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, have, c.want)
		}
	}
}

// TestVFRecord: an inverse is read from a record as it was written, and a damaged one is refused.
func TestVFRecord(t *testing.T) {
	v := everyVFSetting()
	v.Index, v.Own = 7, &VFLink{MAC: "02:00:00:00:00:09", MTU: 1500, Up: true}
	raw, err := json.Marshal(Step{VerbSet, v})
	if err != nil {
		t.Fatal(err)
	}
	var back Step
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, back.Object); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
	for name, damage := range map[string]func(v *VF){
		"PF":         func(v *VF) { v.Link = "../x" },
		"number":     func(v *VF) { v.Number = -1 },
		"device":     func(v *VF) { v.Device = "../../etc" },
		"no device":  func(v *VF) { v.Device = "" },
		"address":    func(v *VF) { v.MAC = "02:00" },
		"VLAN":       func(v *VF) { v.VLAN.ID = 4095 },
		"priority":   func(v *VF) { v.VLAN.QoS = 8 },
		"spoofCheck": func(v *VF) { v.SpoofCheck = "yes" },
		"trust":      func(v *VF) { v.Trust = "1" },
		"linkState":  func(v *VF) { v.LinkState = "up" },
		"index":      func(v *VF) { v.Index = -1 },
		"own":        func(v *VF) { v.Own.MAC = "x" },
		"MTU":        func(v *VF) { v.Own.MTU = -1 },
	} {
		bad := everyVFSetting()
		bad.Own = &VFLink{}
		damage(bad)
		if err := bad.validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
