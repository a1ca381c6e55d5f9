package hostdevice

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestConf: all errors are reported at once, each with its path and a valid
// example.
func TestConf(t *testing.T) {
	long := strings.Repeat("a", 256)
	for _, c := range []struct{ name, conf, want string }{
		{"device", `{"device":"ens3"}`, ""},
		{"hwaddr", `{"hwaddr":"52-54-00-12-34-56"}`, ""},
		{"hwaddr of InfiniBand", `{"hwaddr":"00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"}`, ""},
		{"kernelpath", `{"kernelpath":"/sys/devices/pci0000:00/0000:00:03.0"}`, ""},
		{"pciBusID", `{"pciBusID":"0000:0a:00.7"}`, ""},
		{"pciBusID of a large domain", `{"pciBusID":"10000:E1:00.0"}`, ""},
		{"deviceID on PCI", `{"runtimeConfig":{"deviceID":"0000:03:02.1"}}`, ""},
		{"deviceID on the auxiliary bus", `{"runtimeConfig":{"deviceID":"mlx5_core.sf.4"}}`, ""},
		{"none, as GC and STATUS have it", `{}`, ""},
		{
			"everything at once", `{"device":"a/b","hwaddr":"x","kernelpath":"/etc","pciBusID":"1","runtimeConfig":{"deviceID":"../x"}}`,
			"device: |hwaddr: |kernelpath: |pciBusID: |runtimeConfig.deviceID: ",
		},
		{"device is a pattern", `{"device":"eth%d"}`, `device: "eth%d" is not an interface name`},
		{"kernelpath leaves", `{"kernelpath":"/sys/devices/../class/net/lo"}`, "kernelpath: "},
		{"kernelpath is the tree", `{"kernelpath":"/sys/devices/"}`, "kernelpath: "},
		{"kernelpath is relative", `{"kernelpath":"sys/devices/x"}`, "kernelpath: "},
		{"kernelpath looks alike", `{"kernelpath":"/sys/devicesx/y"}`, "kernelpath: "},
		{"pciBusID without a domain", `{"pciBusID":"03:00.1"}`, "pciBusID: "},
		{"pciBusID of a function too high", `{"pciBusID":"0000:03:00.8"}`, "pciBusID: "},
		{"pciBusID with a path", `{"pciBusID":"../0000:03:00.1"}`, "pciBusID: "},
		{"pciBusID with colons only", `{"pciBusID":"0000:03:00:1"}`, "pciBusID: "},
		{"pciBusID of letters", `{"pciBusID":"000g:03:00.1"}`, "pciBusID: "},
		{"deviceID of dots", `{"runtimeConfig":{"deviceID":"..."}}`, "runtimeConfig.deviceID: "},
		{"deviceID without a number", `{"runtimeConfig":{"deviceID":"mlx5_core.sf.x"}}`, "runtimeConfig.deviceID: "},
		{"deviceID too long", `{"runtimeConfig":{"deviceID":"` + long + `.sf.1"}}`, "runtimeConfig.deviceID: "},
		{"device of another type", `{"device":3}`, "device: is a JSON number, want string"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := rolestest.Read[*role](Role(), []byte(c.conf))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, roles.ErrConf) {
				t.Fatalf("error is %v, want an ErrConf", err)
			}
			for _, w := range strings.Split(c.want, "|") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

// FuzzConf: a configuration is refused or valid, and names of hardware cannot
// lead outside sysfs.
func FuzzConf(f *testing.F) {
	f.Add("ens3", "52:54:00:12:34:56", "/sys/devices/pci0000:00", "0000:03:00.1", "mlx5_core.sf.4")
	f.Add("", "", "/sys/devices/../../etc", "../..", "a.b.1/../x")
	f.Add("%d", "::", "/sys/devices//x/./y/", "0000:03:00.1\x00", "\xff.\xff.0")
	f.Fuzz(func(t *testing.T, device, hwaddr, kernelPath, pciBusID, deviceID string) {
		raw, err := json.Marshal(map[string]any{
			"device": device, "hwaddr": hwaddr, "kernelpath": kernelPath, "pciBusID": pciBusID,
			"runtimeConfig": map[string]any{"deviceID": deviceID},
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := rolestest.Read[*role](Role(), raw)
		if err != nil {
			return
		}
		for _, id := range []string{r.conf.PCIBusID, r.conf.RuntimeConfig.DeviceID} {
			if strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
				t.Errorf("%q is accepted as the name of a device", id)
			}
		}
	})
}
