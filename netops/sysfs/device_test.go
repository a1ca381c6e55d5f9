package sysfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/sysfs"
)

// TestDevice finds devices by path, bus and link. It uses an artificial sysfs tree,
// because test machines do not have these buses and drivers.
func TestDevice(t *testing.T) {
	netopstest.HardwareTree(t)
	const bridge = "pci0000:00/0000:00:1c.0/"
	for _, hw := range []netopstest.Hardware{
		{Bus: "pci", ID: "0000:03:00.0", Path: bridge + "0000:03:00.0", Driver: "ixgbe", Links: []string{"p1", "p0"}},
		{Bus: "pci", ID: "0000:03:00.1", Path: bridge + "0000:03:00.1", Driver: "vfio-pci"},
		{Bus: "pci", ID: "0000:00:04.0", Path: "pci0000:00/0000:00:04.0", Driver: "virtio-pci", Below: "virtio3", Links: []string{"nic"}},
		{Bus: "auxiliary", ID: "mlx5_core.sf.4", Path: bridge + "0000:03:00.0/mlx5_core.sf.4", Driver: "mlx5_core.sf", Links: []string{"sf"}},
	} {
		hw.Add(t)
	}
	if err := os.Mkdir("/sys/devices/pci0000:00/0000:00:05.0", 0o755); err != nil { // no driver
		t.Fatal(err)
	}
	at := func(path string) func() (sysfs.Device, error) {
		return func() (sysfs.Device, error) { return sysfs.At(path) }
	}
	on := func(bus, id string) func() (sysfs.Device, error) {
		return func() (sysfs.Device, error) { return sysfs.On(bus, id) }
	}
	const pci = "/sys/devices/pci0000:00/"
	nic := sysfs.Device{Path: pci + "0000:00:04.0", Driver: "virtio-pci", Links: []string{"nic"}}
	for _, c := range []struct {
		name string
		find func() (sysfs.Device, error)
		want sysfs.Device
		err  error
	}{
		{name: "two ports", find: on("pci", "0000:03:00.0"), want: sysfs.Device{Path: pci + "0000:00:1c.0/0000:03:00.0", Driver: "ixgbe", Links: []string{"p0", "p1"}}},
		{name: "no port", find: on("pci", "0000:03:00.1"), want: sysfs.Device{Path: pci + "0000:00:1c.0/0000:03:00.1", Driver: "vfio-pci"}},
		{name: "virtio", find: on("pci", "0000:00:04.0"), want: nic},
		{name: "auxiliary", find: on("auxiliary", "mlx5_core.sf.4"), want: sysfs.Device{Path: pci + "0000:00:1c.0/0000:03:00.0/mlx5_core.sf.4", Driver: "mlx5_core.sf", Links: []string{"sf"}}},
		{name: "absent", find: on("pci", "0000:09:00.0"), err: netops.ErrNotExist},
		{name: "bus absent", find: on("usb", "1-1"), err: netops.ErrNotExist},
		{name: "ID with a path", find: on("pci", "../../../etc"), err: netops.ErrInvalid},
		{name: "bus with a path", find: on("../pci", "0000:03:00.0"), err: netops.ErrInvalid},
		{name: "ID of dots", find: on("pci", ".."), err: netops.ErrInvalid},
		{name: "no ID", find: on("pci", ""), err: netops.ErrInvalid},
		{name: "path", find: at(pci + "0000:00:04.0"), want: nic},
		{name: "path of a child", find: at(pci + "0000:00:04.0/virtio3"), want: nic},
		{name: "path to be cleaned", find: at(pci + "0000:00:1c.0/../0000:00:04.0/"), want: nic},
		{name: "no driver", find: at(pci + "0000:00:05.0"), want: sysfs.Device{Path: pci + "0000:00:05.0"}},
		{name: "path absent", find: at(pci + "0000:00:06.0"), err: netops.ErrNotExist},
		{name: "path below a link", find: at("/sys/bus/pci/devices/0000:00:04.0"), err: netops.ErrInvalid},
		{name: "path over a link", find: at(pci + "0000:00:04.0/virtio3/net/nic/device"), err: netops.ErrInvalid},
		{name: "path out of the tree", find: at("/sys/devices/../../etc"), err: netops.ErrInvalid},
		{name: "relative path", find: at("sys/devices"), err: netops.ErrNotExist},
		{name: "the tree itself", find: at("/sys/devices"), err: netops.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			have, err := c.find()
			if !errors.Is(err, c.err) {
				t.Fatalf("error is %v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
	for link, want := range map[string]string{"nic": pci + "0000:00:04.0", "p1": pci + "0000:00:1c.0/0000:03:00.0", "virtual": ""} {
		if have, err := sysfs.Of(link); err != nil || have != want {
			t.Errorf("device of %q: %q, %v, want %q", link, have, err, want)
		}
	}
	if _, err := sysfs.Of("../../x"); !errors.Is(err, netops.ErrInvalid) {
		t.Errorf("device of a path: %v", err)
	}
}

// TestFunction finds the physical function and the number of virtual functions.
func TestFunction(t *testing.T) {
	netopstest.HardwareTree(t)
	const pf, devices = "pci0000:00/0000:00:01.0/0000:03:00.0", "/sys/devices/pci0000:00/0000:00:01.0/"
	netopstest.Hardware{Bus: "pci", ID: "0000:03:00.0", Path: pf, Driver: "igb", Links: []string{"pf0"}}.Add(t)
	for i, hw := range []netopstest.Hardware{
		{ID: "0000:03:10.0", Driver: "igbvf", Links: []string{"vf0"}},
		{ID: "0000:03:10.2", Driver: "vfio-pci"},
		{ID: "0000:03:11.0"},
	} {
		hw.Bus, hw.Path, hw.Of, hw.Number = "pci", filepath.Join(filepath.Dir(pf), hw.ID), pf, 5*i
		hw.Add(t)
	}
	// Of a card whose list lacks the function, and one whose list has what is no function.
	lone := filepath.Join(filepath.Dir(pf), "0000:03:12.0")
	netopstest.Hardware{Bus: "pci", ID: "0000:03:12.0", Path: lone, Of: pf, Number: 99}.Add(t)
	for _, err := range []error{
		os.Remove("/sys/devices/" + pf + "/virtfn99"),
		os.Symlink("../0000:03:12.0", "/sys/devices/"+pf+"/virtfn-1"),
		os.Symlink("../0000:03:12.0", "/sys/devices/"+pf+"/virtfn65536"),
		os.Symlink("../0000:03:12.0", "/sys/devices/"+pf+"/virtfnx"),
		os.MkdirAll(devices+"0000:03:13.0", 0o755),
		os.Symlink("/etc", devices+"0000:03:13.0/physfn"),
		os.Symlink("../../../devices/pci0000:00/0000:00:01.0/0000:03:13.0", "/sys/bus/pci/devices/0000:03:13.0"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	physical := sysfs.Device{Path: "/sys/devices/" + pf, Driver: "igb", Links: []string{"pf0"}}
	for _, c := range []struct {
		id   string
		want sysfs.Function
		err  error
	}{
		{id: "0000:03:10.0", want: sysfs.Function{Device: sysfs.Device{Path: devices + "0000:03:10.0", Driver: "igbvf", Links: []string{"vf0"}}, Physical: physical}},
		{id: "0000:03:10.2", want: sysfs.Function{Device: sysfs.Device{Path: devices + "0000:03:10.2", Driver: "vfio-pci"}, Physical: physical, Number: 5}},
		{id: "0000:03:11.0", want: sysfs.Function{Device: sysfs.Device{Path: devices + "0000:03:11.0"}, Physical: physical, Number: 10}},
		{id: "0000:03:00.0", err: netops.ErrInvalid},
		{id: "0000:03:12.0", err: netops.ErrNotExist},
		{id: "0000:03:13.0", err: netops.ErrInvalid},
		{id: "0000:04:00.0", err: netops.ErrNotExist},
		{id: "../0000:03:10.0", err: netops.ErrInvalid},
	} {
		have, err := sysfs.FunctionOn(c.id)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: error is %v, want %v", c.id, err, c.err)
		}
		if diff := cmp.Diff(c.want, have); c.err == nil && diff != "" {
			t.Errorf("%s: -want +have:\n%s", c.id, diff)
		}
	}
	if f, err := sysfs.FunctionOn("0000:03:10.2"); err != nil || !f.IsUserspace() || f.Physical.IsUserspace() {
		t.Errorf("driver of %+v, %v", f, err)
	}
}
