package sriov

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

const (
	// referenceDir is where sriov-cni keeps the file of each attachment, "<container ID>-<interface>", and for each VF in use the file
	// "pci/<PCI address>" with the path of the container's namespace.
	referenceDir = "/var/lib/cni/sriov"
	// maxReference is the maximum size in bytes of such a file: a configuration with the VF's former settings.
	maxReference = 1 << 20
)

// saved is what sriov-cni writes at ADD for its DEL: the configuration, and the VF's settings before. DEL restores those settings that
// the configuration changed, and in any case the administrative MAC address.
type saved struct {
	Name        string `json:"name"`
	DeviceID    string `json:"deviceID"`
	MAC         string `json:"MAC"`
	VLAN        *int   `json:"vlan"`
	MinTxRate   *int   `json:"min_tx_rate"`
	MaxTxRate   *int   `json:"max_tx_rate"`
	SpoofChk    string `json:"spoofchk"`
	Trust       string `json:"trust"`
	LinkState   string `json:"link_state"`
	OrigVfState struct {
		HostIFName, AdminMAC, EffectiveMAC   string
		SpoofChk, Trust                      bool
		Vlan, VlanQoS, VlanProto             int
		MinTxRate, MaxTxRate, LinkState, MTU int
	}
}

// CleanReference returns the VF of an attachment that sriov-cni made, as its file says, and removes its files.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	file := filepath.Join(referenceDir, in.Key.ContainerID+"-"+in.Key.IfName)
	l, err := readSaved(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && l.Name != in.Key.Network {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what sriov-cni recorded of the VF: %w: restore the VF and delete the file", err)
	}
	f, hw, err := (&Conf{DeviceID: l.DeviceID}).find(ctx, h.Net)
	isAbsent := errors.Is(err, netops.ErrNotExist) && f.Path == ""
	if err != nil && !isAbsent {
		return fmt.Errorf("%s: %w", file, err)
	}
	inUse := filepath.Join(referenceDir, "pci", l.DeviceID)
	if isAbsent {
		return removeFiles(inUse, file)
	}
	isOthers, err := l.isOthers(ctx, h, f.Path, inUse, container)
	if err != nil {
		return err
	}
	if isOthers {
		return removeFiles(file)
	}
	if err := l.giveBack(ctx, h, in, &f, &hw, container); err != nil {
		return err
	}
	return removeFiles(inUse, file)
}

// removeFiles deletes files that may be missing. The last one makes DEL try again.
func removeFiles(files ...string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a file of sriov-cni: %w", err)
		}
	}
	return nil
}

// readSaved reads a file. Values that no VF can have are an error.
func readSaved(file string) (*saved, error) {
	raw, err := smallfile.ReadOwn(file, maxReference)
	if err != nil {
		return nil, err
	}
	l := &saved{}
	if err := json.Unmarshal(raw, l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return l, nil
}

func (l *saved) validate() error {
	was := &l.OrigVfState
	var errs []error
	if !sysfs.IsPCIAddress(l.DeviceID) {
		errs = append(errs, fmt.Errorf("deviceID: %q is not a PCI address", l.DeviceID))
	}
	if was.HostIFName != "" {
		errs = append(errs, roles.LinkName(was.HostIFName))
	}
	for _, mac := range []string{l.MAC, was.AdminMAC, was.EffectiveMAC} {
		if m, err := net.ParseMAC(mac); mac != "" && (err != nil || len(m) != 6) {
			errs = append(errs, fmt.Errorf("%q is not a MAC address", mac))
		}
	}
	for _, v := range []struct {
		name       string
		value, max int
	}{
		{"Vlan", was.Vlan, 4094},
		{"VlanQoS", was.VlanQoS, 7},
		{"MinTxRate", was.MinTxRate, maxRate},
		{"MaxTxRate", was.MaxTxRate, maxRate},
		{"LinkState", was.LinkState, len(linkStates()) - 1},
		{"MTU", was.MTU, math.MaxUint16},
	} {
		if v.value < 0 || v.value > v.max {
			errs = append(errs, fmt.Errorf("OrigVfState.%s: %d is out of range", v.name, v.value))
		}
	}
	return errors.Join(errs...)
}

// isOthers reports whether another attachment has the VF by now: one of cnibox, or one that sriov-cni made and whose namespace exists.
func (l *saved) isOthers(ctx context.Context, h *roles.Host, device, inUse string, container *netops.Namespace) (bool, error) {
	switch err := attach.DeviceHolder(ctx, h, device, ""); {
	case errors.Is(err, store.ErrTaken):
		return true, nil
	case err != nil:
		return false, err
	}
	path, err := smallfile.ReadOwn(inUse, unix.PathMax)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read which container sriov-cni gave the VF: %w", err)
	}
	holder, err := attachment.OpenIfPresent(h, string(path))
	if holder == nil || err != nil {
		return false, err
	}
	defer holder.Close() //nolint:errcheck // it was opened for reading
	if container == nil {
		return true, nil
	}
	device1, inode1 := holder.ID()
	device2, inode2 := container.ID()
	return device1 != device2 || inode1 != inode2, nil
}

// giveBack moves the VF's interface to the host, if a container has it, and restores the settings.
func (l *saved) giveBack(ctx context.Context, h *roles.Host, in *attach.Input, f *function, hw *sysfs.Function, container *netops.Namespace) error {
	pf, err := h.Net.Link(ctx, nil, f.PF)
	if err != nil {
		return err
	}
	changes := []netops.Change{{Undo: &netops.Step{Verb: netops.VerbSet, Object: l.vf(f, pf.Index)}}}
	if !f.Userspace && l.OrigVfState.HostIFName != "" {
		move, err := l.move(ctx, h, in, hw.Links, container)
		if err != nil {
			return err
		}
		if move != nil {
			changes = append(changes, netops.Change{Undo: &netops.Step{Verb: netops.VerbDel, Object: move}})
		}
	}
	h.Log.Info("returning a virtual function of sriov-cni", "device", l.DeviceID, "container", in.Key.ContainerID, "ifname", in.Key.IfName)
	return h.Net.Undo(ctx, changes, container)
}

// vf is the inverse of what sriov-cni configured at the card. index is that of the physical function's interface.
func (l *saved) vf(f *function, index int) *netops.VF {
	was := &l.OrigVfState
	v := &netops.VF{Link: f.PF, Number: f.Number, Device: f.Address, Index: index, MAC: was.AdminMAC, Own: &netops.VFLink{MAC: was.EffectiveMAC, MTU: was.MTU}}
	if l.VLAN != nil {
		v.VLAN = &netops.VFVLAN{ID: was.Vlan, QoS: was.VlanQoS, Outer: was.VlanProto == unix.ETH_P_8021AD}
	}
	if l.MinTxRate != nil || l.MaxTxRate != nil {
		v.Rate = &netops.VFRate{Min: uint32(was.MinTxRate), Max: uint32(was.MaxTxRate)}
	}
	text := map[bool]string{true: on, false: off}
	if l.SpoofChk != "" {
		v.SpoofCheck = text[was.SpoofChk]
	}
	if l.Trust != "" {
		v.Trust = text[was.Trust]
	}
	if l.LinkState != "" {
		v.LinkState = linkStates()[was.LinkState]
	}
	return v
}

// move is the inverse that gives the VF's interface its place and its name on the host, or nil if it has both. onHost are the VF's
// interfaces on the host: there the kernel keeps the container's name when the namespace ends.
func (l *saved) move(ctx context.Context, h *roles.Host, in *attach.Input, onHost []string, container *netops.Namespace) (*netops.Move, error) {
	name := l.OrigVfState.HostIFName
	m := &netops.Move{
		From: netops.Host, Name: name, To: netops.Container, As: in.Key.IfName, Alias: attachment.DeviceAlias(in.Key, name), NameOnly: true,
	}
	switch {
	case len(onHost) > 0:
		if slices.Contains(onHost, name) {
			return nil, nil
		}
		// The label finds it, as after an ADD of cnibox.
		return m, h.Net.Ensure(ctx, netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Host, Name: onHost[0], Alias: m.Alias}}}, nil)
	case container == nil:
		return nil, nil
	}
	links, err := h.Net.Links(ctx, container)
	if err != nil {
		return nil, err
	}
	isPhysical := func(i *netops.LinkInfo) bool { return i.Kind == "" && i.Name != "lo" && !attachment.Labelled(*i) }
	hasMAC := func(i netops.LinkInfo) bool {
		return isPhysical(&i) && (strings.EqualFold(i.MAC, l.MAC) || strings.EqualFold(i.MAC, l.OrigVfState.EffectiveMAC))
	}
	at := slices.IndexFunc(links, hasMAC)
	if at < 0 {
		at = slices.IndexFunc(links, func(i netops.LinkInfo) bool { return isPhysical(&i) && i.Name == in.Key.IfName })
	}
	if at < 0 {
		return nil, nil
	}
	m.As, m.MAC = links[at].Name, links[at].MAC
	return m, nil
}
