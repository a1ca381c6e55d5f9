package netops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
	"github.com/cnibox/cnibox/netops/sysfs"
)

// VF configures a virtual function of a network card (SR-IOV) through the card's physical function (PF). The zero value of a
// setting leaves it unchanged.
//
// MAC is set twice: at the PF, which is the administrative address, and at the VF's own interface, if that is on the host.
// So VF comes before the Move of that interface, and the card never sends frames of the container without their VLAN.
//
// The inverse restores the settings that differed, and always the administrative address, which the card may have changed for
// a container. It then restores the address, the MTU and the state of the VF's interface, which a driver may refuse before. It must
// run after the inverse of the Move, which has NameOnly. An absent PF or VF is not an error: the card forgot its settings.
type VF struct {
	// Link is the PF's interface, and Number the VF's number there.
	Link   string `json:"link"`
	Number int    `json:"vf"`
	// Device is the VF's PCI address, which leads to its interface.
	Device string  `json:"device"`
	MAC    string  `json:"mac,omitempty"`
	VLAN   *VFVLAN `json:"vlan,omitempty"`
	Rate   *VFRate `json:"rate,omitempty"`
	// SpoofCheck and Trust are "on" or "off".
	SpoofCheck string `json:"spoofCheck,omitempty"`
	Trust      string `json:"trust,omitempty"`
	// LinkState is "auto", "enable" or "disable".
	LinkState string `json:"linkState,omitempty"`
	// Index identifies the PF in an inverse, and Own has what the VF's interface gets back.
	Index int     `json:"index,omitempty"`
	Own   *VFLink `json:"own,omitempty"`
}

// VFVLAN is a VLAN whose tag the card adds to the frames of a VF and removes from those for it.
type VFVLAN struct {
	// ID 0 removes the VLAN.
	ID  int `json:"id"`
	QoS int `json:"qos,omitempty"`
	// Outer selects 802.1ad instead of 802.1Q.
	Outer bool `json:"outer,omitempty"`
}

// VFRate limits what a VF sends, in Mbit/s. 0 is no limit.
type VFRate struct {
	Min uint32 `json:"min"`
	Max uint32 `json:"max"`
}

// VFLink has the settings of a VF's interface that are restored.
type VFLink struct {
	MAC string `json:"mac,omitempty"`
	MTU int    `json:"mtu,omitempty"`
	Up  bool   `json:"up,omitempty"`
}

// noMAC is the administrative address of a VF that has none.
const noMAC = "00:00:00:00:00:00"

// maxVF is more than the highest number of a VF (a field of 16 bits).
const maxVF = 1<<16 - 1

// Where returns Host: a PF is not moved.
func (v *VF) Where() Place { return Host }

// IsShared returns false: a VF belongs to one attachment.
func (v *VF) IsShared() bool { return false }

// String formats the settings like ip-link(8).
func (v *VF) String() string {
	w := words{"vf", strconv.Itoa(v.Number), "dev", v.Link}
	for _, s := range vfSettings() {
		w.value(s.name, s.value(v))
	}
	w.flag(len(w) == 4 && v.Own == nil, "unchanged")
	if o := v.Own; o != nil {
		w = append(w, "and its interface")
		w.value("address", o.MAC)
		w.number("mtu", o.MTU)
		w = append(w, upDown(o.Up))
	}
	return w.String()
}

func (v *VF) validate() error {
	errs := []error{rtnl.CheckName(v.Link), rtnl.CheckRange("vf", v.Number, 0, maxVF), rtnl.CheckMAC(v.MAC), checkIndex(v.Index)}
	if !sysfs.IsPCIAddress(v.Device) {
		errs = append(errs, fmt.Errorf("device %q: %w", v.Device, ErrInvalid))
	}
	if l := v.VLAN; l != nil {
		errs = append(errs, rtnl.CheckRange("vlan", l.ID, 0, rtnl.MaxVLAN), rtnl.CheckRange("qos", l.QoS, 0, 7))
	}
	for _, s := range []string{v.SpoofCheck, v.Trust} {
		if s != "" && s != onOff(true) && s != onOff(false) {
			errs = append(errs, fmt.Errorf("setting %q: %w", s, ErrInvalid))
		}
	}
	if _, ok := vfStateNumber(v.LinkState); v.LinkState != "" && !ok {
		errs = append(errs, fmt.Errorf("link state %q: %w", v.LinkState, ErrInvalid))
	}
	if o := v.Own; o != nil {
		errs = append(errs, rtnl.CheckMAC(o.MAC), rtnl.CheckMTU(o.MTU))
	}
	return errors.Join(errs...)
}

func (v *VF) removal() *Step { return nil }

// vfSetting is a setting of a VF that one request changes.
type vfSetting struct {
	// name is the setting's name in ip-link(8).
	name string
	// value returns comparable text, or "" if the VF does not set it.
	value func(v *VF) string
	// copy sets it as another VF has it.
	copy func(to, from *VF)
	// add appends the attribute of a request.
	add func(v *VF, b *nlconn.Body)
}

// vfSettings lists the settings in the order in which they are made. Drivers require that a VF is trusted before its interface
// chooses an address.
func vfSettings() []vfSetting {
	return []vfSetting{
		{
			"vlan", func(v *VF) string { return v.VLAN.text() }, func(to, from *VF) { to.VLAN = from.VLAN },
			func(v *VF, b *nlconn.Body) { v.codec().AddVFVLAN(b) },
		},
		{
			"mac", func(v *VF) string { return canonicalMAC(v.MAC) }, func(to, from *VF) { to.MAC = from.MAC },
			func(v *VF, b *nlconn.Body) { v.codec().AddVFMAC(b) },
		},
		{
			"rate", func(v *VF) string { return v.Rate.text() }, func(to, from *VF) { to.Rate = from.Rate },
			func(v *VF, b *nlconn.Body) { v.codec().AddVFRate(b) },
		},
		{
			"spoofchk", func(v *VF) string { return v.SpoofCheck }, func(to, from *VF) { to.SpoofCheck = from.SpoofCheck },
			func(v *VF, b *nlconn.Body) { v.codec().AddVFSetting(b, nl.IFLA_VF_SPOOFCHK, vfSwitch(v.SpoofCheck)) },
		},
		{
			"trust", func(v *VF) string { return v.Trust }, func(to, from *VF) { to.Trust = from.Trust },
			func(v *VF, b *nlconn.Body) { v.codec().AddVFSetting(b, nl.IFLA_VF_TRUST, vfSwitch(v.Trust)) },
		},
		{
			"state", func(v *VF) string { return v.LinkState }, func(to, from *VF) { to.LinkState = from.LinkState },
			func(v *VF, b *nlconn.Body) {
				state, _ := vfStateNumber(v.LinkState)
				v.codec().AddVFSetting(b, nl.IFLA_VF_LINK_STATE, state)
			},
		},
	}
}

func (l *VFVLAN) text() string {
	switch {
	case l == nil:
		return ""
	case l.ID == 0: // the kernel reports a priority and protocol that do not apply
		return "0"
	}
	protocol := "802.1Q"
	if l.Outer {
		protocol = "802.1ad"
	}
	return fmt.Sprintf("%d qos %d proto %s", l.ID, l.QoS, protocol)
}

func (r *VFRate) text() string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("min_tx_rate %d max_tx_rate %d", r.Min, r.Max)
}

func vfSwitch(text string) uint32 {
	if text == onOff(true) {
		return 1
	}
	return 0
}

func vfStateNumber(name string) (uint32, bool) {
	for i, n := range rtnl.VFLinkStates() {
		if n == name {
			return uint32(i), true
		}
	}
	return 0, false
}

// codec returns the settings as the kernel has them.
func (v *VF) codec() *rtnl.VF {
	c := &rtnl.VF{Number: v.Number}
	if mac, err := net.ParseMAC(v.MAC); err == nil {
		c.MAC = mac
	}
	if l := v.VLAN; l != nil {
		c.VLAN = rtnl.VFVLAN{ID: uint32(l.ID), QoS: uint32(l.QoS), Protocol: unix.ETH_P_8021Q}
		if l.Outer {
			c.VLAN.Protocol = unix.ETH_P_8021AD
		}
	}
	if r := v.Rate; r != nil {
		c.MinRate, c.MaxRate = r.Min, r.Max
	}
	return c
}

// presentVF returns all settings of a VF. A setting that the driver does not report is empty.
func presentVF(link string, f *rtnl.VF) *VF {
	v := &VF{
		Link: link, Number: f.Number, Rate: &VFRate{Min: f.MinRate, Max: f.MaxRate},
		VLAN: &VFVLAN{ID: int(f.VLAN.ID), QoS: int(f.VLAN.QoS), Outer: f.VLAN.Protocol == unix.ETH_P_8021AD},
	}
	if mac := f.MAC.String(); rtnl.CheckMAC(mac) == nil { // InfiniBand's is not set in this way
		v.MAC = mac
	}
	if f.SpoofCheck != nil {
		v.SpoofCheck = onOff(*f.SpoofCheck)
	}
	if f.Trust != nil {
		v.Trust = onOff(*f.Trust)
	}
	if names := rtnl.VFLinkStates(); f.LinkState < uint32(len(names)) {
		v.LinkState = names[f.LinkState]
	}
	return v
}

// difference returns the settings of v that the present ones differ from, and these present ones. Both have the administrative
// address if only that of the VF's interface differs.
func (v *VF) difference(present *VF, own *rtnl.Link) (set, old *VF) {
	set = &VF{Link: v.Link, Number: v.Number, Device: v.Device}
	old = &VF{Link: v.Link, Number: v.Number, Device: v.Device}
	for _, s := range vfSettings() {
		if want := s.value(v); want != "" && want != s.value(present) {
			s.copy(set, v)
			s.copy(old, present)
		}
	}
	if v.MAC != "" && own != nil && !rtnl.SameMAC(v.MAC, own.MAC) {
		set.MAC = v.MAC
	}
	return set, old
}

func (v *VF) plan(ctx context.Context, s *session) ([]Change, error) {
	pf, err := s.link(ctx, Host, v.Link)
	if err != nil {
		return nil, err
	}
	present, err := v.present(ctx, s, pf.Index)
	if err == nil && present == nil {
		err = v.absent()
	}
	if err != nil {
		return nil, err
	}
	own, err := v.ownLink(ctx, s)
	if err != nil {
		return nil, err
	}
	set, old := v.difference(present, own)
	old.Index, old.MAC = pf.Index, present.MAC
	if own != nil {
		old.Own = &VFLink{MAC: own.MAC.String(), MTU: own.MTU, Up: own.IsUp()}
	}
	return []Change{{Do: Step{VerbSet, set}, Undo: &Step{VerbSet, old}}}, nil
}

// VF reads a virtual function at the interface of its physical function, with the settings that the driver reports. The error
// wraps ErrNotExist if the interface or the function is absent.
func (n *Net) VF(ctx context.Context, link string, number int) (*VF, error) {
	if err := rtnl.CheckName(link); err != nil {
		return nil, err
	}
	s := n.session(nil)
	index, err := s.indexOf(ctx, Host, link)
	if err != nil {
		return nil, err
	}
	v := &VF{Link: link, Number: number}
	present, err := v.present(ctx, s, index)
	if err == nil && present == nil {
		err = v.absent()
	}
	return present, err
}

// CardOf returns the interface on the host of the physical function one of whose virtual functions has an administrative MAC address. The
// error wraps ErrNotExist if there is none: a driver may report no address.
func (n *Net) CardOf(ctx context.Context, mac string) (LinkInfo, error) {
	none := fmt.Errorf("physical function of the virtual function with the address %q: %w", mac, ErrNotExist)
	if rtnl.CheckMAC(mac) != nil || canonicalMAC(mac) == noMAC {
		return LinkInfo{}, none
	}
	links, err := n.Links(ctx, nil)
	if err != nil {
		return LinkInfo{}, err
	}
	c, err := n.host.socket()
	if err != nil {
		return LinkInfo{}, err
	}
	for i := range links {
		if links[i].Kind != "" {
			continue
		}
		all, err := c.VFs(ctx, links[i].Index)
		if err != nil && !nlconn.IsAbsent(err) {
			return LinkInfo{}, err
		}
		if slices.ContainsFunc(all, func(f rtnl.VF) bool { return rtnl.SameMAC(mac, f.MAC) }) {
			return links[i], nil
		}
	}
	return LinkInfo{}, none
}

func (v *VF) absent() error {
	return fmt.Errorf("vf %d of interface %q: %w", v.Number, v.Link, ErrNotExist)
}

// present reads the VF's settings at the PF with an index. It returns nil if the PF has no such VF.
func (v *VF) present(ctx context.Context, s *session, pf int) (*VF, error) {
	c, err := s.conn(Host)
	if err != nil {
		return nil, err
	}
	all, err := c.VFs(ctx, pf)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Number == v.Number {
			return presentVF(v.Link, &all[i]), nil
		}
	}
	return nil, nil
}

// ownLink reads the VF's interface, and returns nil if the host does not have it.
func (v *VF) ownLink(ctx context.Context, s *session) (*rtnl.Link, error) {
	d, err := sysfs.On(sysfs.PCI, v.Device)
	if errors.Is(err, ErrNotExist) || err == nil && len(d.Links) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.findLink(ctx, Host, d.Links[0])
}

func (v *VF) verify(ctx context.Context, s *session) ([]Difference, error) {
	pf, err := s.findLink(ctx, Host, v.Link)
	if err != nil || pf == nil {
		return absentIf(err, v)
	}
	present, err := v.present(ctx, s, pf.Index)
	if err != nil || present == nil {
		return absentIf(err, v)
	}
	d := differences{object: v}
	for _, a := range vfSettings() {
		if want, have := a.value(v), a.value(present); want != "" && have != "" {
			d.compare(a.name, want, have)
		}
	}
	return d.list, nil
}

// apply makes the settings, and gives the VF's interface its address. The interface is down afterwards.
func (v *VF) apply(ctx context.Context, run *applier, batch []Change) error {
	c := batch[0]
	index, conn, err := run.linkConn(ctx, Host, v.Link)
	if err != nil {
		return describeStep(c.Do, err)
	}
	run.done = append(run.done, c) // the inverse compares with what is present
	for _, s := range vfSettings() {
		if err := v.set(ctx, conn, index, s); err != nil {
			return err
		}
	}
	if v.MAC == "" {
		return nil
	}
	return describeStep(c.Do, v.configureOwn(ctx, run.session, &VFLink{MAC: v.MAC}))
}

// set makes one setting, if v has it. The error names this setting only.
func (v *VF) set(ctx context.Context, c *rtnl.Conn, index int, s vfSetting) error {
	if s.value(v) == "" {
		return nil
	}
	busy := func(err error) bool { return errors.Is(nlconn.Explain(err, s.name), ErrBusy) }
	err := untilReady(ctx, busy, func() error { return c.One(ctx, rtnl.VFRequest(index, func(b *nlconn.Body) { s.add(v, b) })) })
	if err == nil {
		return nil
	}
	one := &VF{Link: v.Link, Number: v.Number}
	s.copy(one, v)
	return nlconn.Explain(err, fmt.Sprintf("%s %s: the driver of the card refuses it", VerbSet, one))
}

// outdated returns the settings of an inverse that the present ones differ from. A driver may report the address that the VF's
// interface chose as the administrative one. It stays if there was none: without it the card would drop the VF's packets.
func (v *VF) outdated(present *VF) *VF {
	old := &VF{Link: v.Link, Number: v.Number}
	for _, s := range vfSettings() {
		if s.value(v) != s.value(present) {
			s.copy(old, v)
		}
	}
	if v.Own != nil && v.MAC == noMAC && canonicalMAC(v.Own.MAC) == present.MAC {
		old.MAC = ""
	}
	return old
}

// undo restores the settings that differ, and then the VF's interface, which the host can have without the PF's.
func (v *VF) undo(ctx context.Context, s *session, _ Verb) error {
	err := v.undoSettings(ctx, s)
	if nlconn.IsAbsent(err) {
		err = nil
	}
	if v.Own != nil {
		err = errors.Join(err, v.configureOwn(ctx, s, v.Own))
	}
	return err
}

// undoSettings restores the settings at the PF that differ.
func (v *VF) undoSettings(ctx context.Context, s *session) error {
	c, err := s.conn(Host)
	if err != nil {
		return err
	}
	pf, err := c.LinkByIndex(ctx, v.Index)
	if err != nil {
		return err
	}
	present, err := v.present(ctx, s, pf.Index)
	if err != nil || present == nil {
		return err
	}
	var errs []error
	old := v.outdated(present)
	for _, a := range vfSettings() {
		errs = append(errs, old.set(ctx, c, pf.Index, a))
	}
	return errors.Join(errs...)
}

// configureOwn gives the VF's interface an address, an MTU and a state, if the host has the interface. Not every driver can change
// the address of an interface that is up. An MTU that the driver refuses stays as it is: the PF's can be smaller by now.
func (v *VF) configureOwn(ctx context.Context, s *session, want *VFLink) error {
	have, err := v.ownLink(ctx, s)
	if err != nil || have == nil {
		return err
	}
	c, err := s.conn(Host)
	if err != nil {
		return err
	}
	set := func(l *Link) error {
		m, err := l.setAt(ctx, s, have.Index)
		if err != nil {
			return err
		}
		return nlconn.Explain(c.One(ctx, m), fmt.Sprintf("interface %q", have.Name))
	}
	up := have.IsUp()
	if want.MAC != "" && !rtnl.SameMAC(want.MAC, have.MAC) {
		if err := v.setOwnMAC(ctx, c, have, want.MAC, set); err != nil {
			return err
		}
		up = false
	}
	if want.MTU != 0 && want.MTU != have.MTU {
		if err := set(&Link{MTU: want.MTU}); err != nil && !isImpossible(err) {
			return err
		}
	}
	if want.Up && !up {
		return set(&Link{Up: true})
	}
	return nil
}

// setOwnMAC sets the interface down and gives it an address. A driver may refuse an address that an untrusted VF chooses, even the
// administrative one, and take that when the interface is set down.
func (v *VF) setOwnMAC(ctx context.Context, c *rtnl.Conn, have *rtnl.Link, mac string, set func(*Link) error) error {
	if err := set(&Link{Down: true}); err != nil {
		return err
	}
	wasReset := false
	err := untilReady(ctx, func(error) bool { return true }, func() error {
		err := set(&Link{MAC: mac})
		if err != nil && !wasReset && !errors.Is(err, ErrBusy) {
			wasReset = true
			err = errors.Join(err, set(&Link{Up: true}), set(&Link{Down: true}))
		}
		now, readErr := c.LinkByIndex(ctx, have.Index)
		switch {
		case readErr != nil:
			return readErr
		case rtnl.SameMAC(mac, now.MAC):
			return nil
		case err == nil:
			err = fmt.Errorf("interface %q has the address %s: %w", have.Name, now.MAC, ErrBusy)
		}
		return err
	})
	if err == nil {
		return nil
	}
	// The errno of some drivers is that of an absent object, which an inverse ignores.
	return fmt.Errorf("address %s: %w: the driver of the card refuses it (%s); a trusted VF may change it", mac, ErrPermission, err.Error())
}

const (
	// readyPatience limits the wait for a VF, and readyInterval is the time between two tries. The reference waits as long.
	readyPatience = 2 * time.Second
	readyInterval = 100 * time.Millisecond
)

// untilReady calls f until it succeeds, or returns an error that is not temporary, or readyPatience ends. A driver resets a VF
// after some changes, refuses other changes meanwhile, and does not notify of the end.
func untilReady(ctx context.Context, temporary func(error) bool, f func() error) error {
	late := time.After(readyPatience)
	for {
		err := f()
		if err == nil || !temporary(err) {
			return err
		}
		select {
		case <-time.After(readyInterval):
		case <-late:
			return err
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
