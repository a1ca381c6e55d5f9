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
	// CheckpointFile is kubelet's record of the devices of each pod.
	CheckpointFile = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
	// maxCheckpoint is the maximum size of kubelet's file in bytes.
	maxCheckpoint = 16 << 20
	// deviceInfoDir is the directory in which device plugins and CNI plugins describe devices (the
	// Device Information Specification of the standard's authors).
	deviceInfoDir = "/var/run/k8s.cni.cncf.io/devinfo"
	// maxDeviceInfo is the maximum size of a device information file in bytes.
	maxDeviceInfo = 64 << 10
)

// checkpoint has the required part of kubelet's file.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID       string
			ResourceName string
			// DeviceIDs is a list, or since Kubernetes 1.20 one list for each NUMA node.
			DeviceIDs json.RawMessage
		}
	}
}

// Devices returns the pod's devices of a resource from kubelet's checkpoint, container by
// container. Each network with the resource uses the next device. kubelet writes the file before
// the pod's sandbox exists, so no API request is needed.
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

// DevicePluginInfo returns the path of the file that a device plugin writes for a device of a
// resource.
func DevicePluginInfo(resource, deviceID string) string {
	return filepath.Join(deviceInfoDir, "dp", fileName(resource+"-"+deviceID+"-device.json"))
}

// AttachmentInfo returns the path of the file in which an attachment's plugin describes its device:
// the value of the capability CNIDeviceInfoFile.
func AttachmentInfo(network, containerID, ifName string) string {
	return filepath.Join(deviceInfoDir, "cni", fileName(network+"-"+containerID+"_"+ifName))
}

// fileName replaces separators, so that the file stays in its directory.
func fileName(s string) string { return strings.ReplaceAll(s, "/", "-") }

// DeviceInfo reads the first existing file. It returns nil if none exists. A file without a JSON
// object is an error that has the path.
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
			return nil, fmt.Errorf("device information %s: is not a JSON object", path)
		}
		return raw, nil
	}
	return nil, nil
}
