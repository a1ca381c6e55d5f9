package nad

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDevices: both forms of kubelet's file.
func TestDevices(t *testing.T) {
	dir := tree(t, map[string]string{
		"checkpoint": `{"Data":{"PodDeviceEntries":[
			{"PodUID":"u1","ContainerName":"a","ResourceName":"intel.com/sriov","DeviceIDs":{"1":["0000:03:02.3"],"0":["0000:03:02.1","0000:03:02.2"]},"AllocResp":"CkM="},
			{"PodUID":"u1","ContainerName":"a","ResourceName":"other/r","DeviceIDs":{"-1":["d"]}},
			{"PodUID":"u2","ContainerName":"a","ResourceName":"intel.com/sriov","DeviceIDs":["x"]},
			{"PodUID":"u1","ContainerName":"b","ResourceName":"intel.com/sriov","DeviceIDs":["0000:03:02.4"]}],
			"RegisteredDevices":{"intel.com/sriov":["0000:03:02.1"]}},"Checksum":3366622474}`,
		"bad": `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ResourceName":"r","DeviceIDs":7}]}}`, "empty": "",
	})
	for _, c := range []struct {
		file, uid, resource string
		want                []string
		fails               bool
	}{
		{"checkpoint", "u1", "intel.com/sriov", []string{"0000:03:02.1", "0000:03:02.2", "0000:03:02.3", "0000:03:02.4"}, false},
		{"checkpoint", "u2", "intel.com/sriov", []string{"x"}, false},
		{"checkpoint", "u3", "intel.com/sriov", nil, false},
		{"bad", "u1", "r", nil, true},
		{"bad", "u2", "r", nil, false},
		{"empty", "u1", "r", nil, true},
		{"none", "u1", "r", nil, true},
	} {
		have, err := Devices(filepath.Join(dir, c.file), c.uid, c.resource)
		if (err != nil) != c.fails || !cmp.Equal(c.want, have) {
			t.Errorf("%+v: have %v, %v", c, have, err)
		}
	}
}

func TestDeviceInfo(t *testing.T) {
	dir := tree(t, map[string]string{"a": `{"type":"pci"}`, "b": `[1]`, "c": ``})
	at := func(s string) string { return filepath.Join(dir, s) }
	if have, err := DeviceInfo(at("none"), at("a"), at("b")); err != nil || string(have) != `{"type":"pci"}` {
		t.Errorf("have %s, %v", have, err)
	}
	if have, err := DeviceInfo(at("none")); err != nil || have != nil {
		t.Errorf("have %s, %v", have, err)
	}
	for _, name := range []string{"b", "c", "."} {
		if have, err := DeviceInfo(at(name)); err == nil {
			t.Errorf("%s: have %s", name, have)
		}
	}
	if p := DevicePluginInfo("intel.com/sriov", "../0000:03:02.1"); p != "/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-sriov-..-0000:03:02.1-device.json" {
		t.Error(p)
	}
	if p := AttachmentInfo("ns/net", "c", "net1"); p != "/var/run/k8s.cni.cncf.io/devinfo/cni/ns-net-c_net1" {
		t.Error(p)
	}
}
