package nad

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
)

const (
	// CheckpointFile is where kubelet keeps which pod holds which device.
	CheckpointFile = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
	// maxCheckpoint is far above what a full node has, in bytes.
	maxCheckpoint = 16 << 20
	// deviceInfoDir is where device plugins and CNI plugins tell of devices
	// (the Device Information Specification of the standard's authors).
	deviceInfoDir = "/var/run/k8s.cni.cncf.io/devinfo"
	// maxDeviceInfo is far above what a device has to tell, in bytes.
	maxDeviceInfo = 64 << 10
)

// checkpoint is the part of kubelet's file that is read.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID       string
			ResourceName string
			// DeviceIDs is a list, since Kubernetes 1.20 one for each NUMA node.
			DeviceIDs json.RawMessage
		}
	}
}

// Devices are those that the pod holds of a resource, by kubelet's checkpoint,
// container by container. Each network of the resource takes the next. It needs
// no API; kubelet writes the file before the pod's sandbox is made.
func Devices(path, podUID, resource string) ([]string, error) {
	raw, err := smallfile.Read(path, maxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("devices of %s: %w", resource, err)
	}
	var c checkpoint
	if err := coldjson.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("devices of %s: %s: %w", resource, path, roles.Mismatch(err))
	}
	var out []string
	for _, e := range c.Data.PodDeviceEntries {
		if e.PodUID != podUID || e.ResourceName != resource {
			continue
		}
		var flat []string
		if coldjson.Unmarshal(e.DeviceIDs, &flat) == nil {
			out = append(out, flat...)
			continue
		}
		var byNode map[string][]string
		if err := coldjson.Unmarshal(e.DeviceIDs, &byNode); err != nil {
			return nil, fmt.Errorf("devices of %s: %s: DeviceIDs: %w", resource, path, roles.Mismatch(err))
		}
		for _, node := range slices.Sorted(maps.Keys(byNode)) {
			out = append(out, byNode[node]...)
		}
	}
	return out, nil
}

// DevicePluginInfo is the file that a device plugin writes for a device of a
// resource.
func DevicePluginInfo(resource, deviceID string) string {
	return filepath.Join(deviceInfoDir, "dp", fileName(resource+"-"+deviceID+"-device.json"))
}

// AttachmentInfo is the file in which the plugin of an attachment tells of its
// device: the value of the capability CNIDeviceInfoFile.
func AttachmentInfo(network, containerID, ifName string) string {
	return filepath.Join(deviceInfoDir, "cni", fileName(network+"-"+containerID+"_"+ifName))
}

// fileName has no separators: a name stays in its directory.
func fileName(s string) string { return strings.ReplaceAll(s, "/", "-") }

// DeviceInfo reads the first of some files that is there; nil when none is. A
// file that holds no JSON object is an error that names it.
func DeviceInfo(paths ...string) (json.RawMessage, error) {
	for _, path := range paths {
		raw, err := smallfile.Read(path, maxDeviceInfo)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("device information: %w", err)
		}
		var object map[string]json.RawMessage
		if err := coldjson.Unmarshal(raw, &object); err != nil || object == nil {
			return nil, fmt.Errorf("device information %s: is no JSON object", path)
		}
		return raw, nil
	}
	return nil, nil
}
