package nad

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/grpc"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

const (
	// KubeletSocket is where kubelet serves its pod-resources API.
	KubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	// EnableClaims says what an older kubelet needs.
	EnableClaims = "before Kubernetes 1.34, enable kubelet's feature gates KubeletPodResourcesGet and KubeletPodResourcesDynamicResources"
	// kubeletTime bounds the call of that API.
	kubeletTime = 2 * time.Second
)

// ClaimedDevice is a device of a ResourceClaim (Dynamic Resource Allocation) that kubelet has prepared for a pod.
type ClaimedDevice struct {
	Claim string
	// Driver, Pool and Device name the device. They are empty for a claim without devices.
	Driver, Pool, Device string
	// PCI is the device's PCI address, or empty.
	PCI string
}

func (c *ClaimedDevice) String() string {
	if c.Device == "" {
		return fmt.Sprintf("claim %q has none", c.Claim)
	}
	return fmt.Sprintf("claim %q has device %q of driver %q", c.Claim, c.Device, c.Driver)
}

// The required parts of kubelet's v1.GetPodResourcesResponse (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto).
type (
	podResponse struct {
		Pod podResources `protobuf:"1"`
	}
	podResources struct {
		Containers []podContainer `protobuf:"3"`
	}
	podContainer struct {
		Claims []podClaim `protobuf:"5"`
	}
	podClaim struct {
		Name    string      `protobuf:"2"`
		Devices []podDevice `protobuf:"4"`
	}
	podDevice struct {
		CDI    []cdiDevice `protobuf:"1"`
		Driver string      `protobuf:"2"`
		Pool   string      `protobuf:"3"`
		Device string      `protobuf:"4"`
	}
	cdiDevice struct {
		Name string `protobuf:"1"`
	}
)

// ClaimedDevices returns the devices of the pod's claims from kubelet's pod-resources API. An error says what to do where the API is off.
func ClaimedDevices(ctx context.Context, socket, namespace, pod string) ([]ClaimedDevice, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTime)
	defer cancel()
	var request []byte
	for i, s := range []string{pod, namespace} {
		request = append(binary.AppendUvarint(append(request, byte(i+1)<<3|2), uint64(len(s))), s...)
	}
	raw, err := grpc.Call(ctx, socket, "/v1.PodResourcesLister/Get", request)
	if err == nil {
		var all []ClaimedDevice
		all, err = readClaimedDevices(raw)
		if err == nil {
			return all, nil
		}
	}
	class, fix := roles.ErrTryAgain, ""
	var refused *grpc.StatusError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		class, fix = roles.ErrConf, ": use Kubernetes 1.34 or later, or a device plugin"
	case errors.As(err, &refused) && refused.Code != grpc.ResourceExhausted && refused.Code != grpc.Unavailable:
		class, fix = roles.ErrConf, ": "+EnableClaims
	}
	return nil, fmt.Errorf("%w: ResourceClaims of pod %s/%s: kubelet: %w%s", class, namespace, pod, err, fix)
}

// readClaimedDevices reads kubelet's answer.
func readClaimedDevices(raw []byte) ([]ClaimedDevice, error) {
	var answer podResponse
	if err := rest.ReadMessage(raw, &answer); err != nil {
		return nil, err
	}
	var all []ClaimedDevice // containers can share a claim
	for _, container := range answer.Pod.Containers {
		for _, claim := range container.Claims {
			if len(claim.Devices) == 0 {
				claim.Devices = make([]podDevice, 1)
			}
			for _, d := range claim.Devices {
				c := ClaimedDevice{claim.Name, d.Driver, d.Pool, d.Device, d.pci()}
				if !slices.Contains(all, c) {
					all = append(all, c)
				}
			}
		}
	}
	return all, nil
}

// pci returns the device's PCI address: that in its CDI names (VENDOR/CLASS=NAME), as Multus before 4.3, or its own name, a DNS label such as
// 0000-03-02-1. kubelet lists the CDI names of a driver's earlier devices before those of the device.
func (d *podDevice) pci() string {
	for _, cdi := range slices.Backward(d.CDI) {
		_, name, _ := strings.Cut(cdi.Name, "=")
		if address := pciAddress(name); address != "" {
			return address
		}
	}
	return pciAddress(strings.TrimPrefix(d.Device, "pci-"))
}

// pciAddress returns the PCI address that s is, with its own separators or others, or nothing.
func pciAddress(s string) string {
	p := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '-' || r == '.' })
	if len(p) != 4 || len(p[0]) < 4 || len(p[0]) > 8 || len(p[1]) != 2 || len(p[2]) != 2 || len(p[3]) != 1 ||
		len(s) != len(p[0])+8 || strings.Trim(strings.Join(p, ""), "0123456789abcdef") != "" {
		return ""
	}
	return p[0] + ":" + p[1] + ":" + p[2] + "." + p[3]
}
