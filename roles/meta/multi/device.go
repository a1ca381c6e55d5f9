package multi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// devices are those that kubelet has allocated to a pod: by device plugins, and by ResourceClaims.
type devices struct {
	pod *roles.Request
	api kubeAPI
	// held counts the devices in use by resource.
	held map[string]int
	// claimed has the devices of the pod's claims once kubelet has been asked.
	claimed []nad.ClaimedDevice
}

func newDevices(pod *roles.Request, api kubeAPI) devices {
	return devices{pod: pod, api: api, held: map[string]int{}}
}

// next returns the pod's next device of a resource: first those of device plugins, then those of claims. Without a pod of Kubernetes, such as for
// STATUS, there is none.
func (d *devices) next(ctx context.Context, resource string) (string, error) {
	if d.pod == nil {
		return "", nil
	}
	ids, err := nad.Devices(nad.CheckpointFile, d.pod.Args.Get("K8S_POD_UID"), resource)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	n := d.held[resource]
	if n >= len(ids) {
		claimed, err := d.ofClaims(ctx, resource)
		ids = append(ids, claimed...)
		if n >= len(ids) {
			return "", fmt.Errorf("the pod has %d devices of resource %q and requests one more: %w", len(ids), resource, cmp.Or(err, roles.ErrConf))
		}
	}
	d.held[resource]++
	return ids[n], nil
}

// ofClaims returns the devices of the pod's claims that a resource names, sorted: by the name of the claim or of the driver, or else by the name
// that the driver publishes for the device. The last is Multus's, and the first was Multus's before.
func (d *devices) ofClaims(ctx context.Context, resource string) (ids []string, err error) {
	namespace, pod := d.pod.Args.Get("K8S_POD_NAMESPACE"), d.pod.Args.Get("K8S_POD_NAME")
	if pod == "" {
		return nil, nil
	}
	if d.claimed == nil {
		d.claimed, err = nad.ClaimedDevices(ctx, nad.KubeletSocket, namespace, pod)
		if err != nil {
			return nil, err
		}
	}
	var found []string
	for i := range d.claimed {
		c := &d.claimed[i]
		found = append(found, c.String())
		if c.PCI != "" && (resource == c.Claim || resource == c.Driver) {
			ids = append(ids, c.PCI)
		}
	}
	if ids == nil && found != nil && d.api != nil {
		ids, err = d.published(ctx, namespace, pod, resource)
	}
	if ids == nil && err == nil {
		what := "kubelet has no ResourceClaims: name the claim in resources.claims of a container; " + nad.EnableClaims
		if found != nil {
			what = strings.Join(found, ", ") + ": name a claim or driver in resourceName whose devices are named by PCI addresses, " +
				"or set \"kubeconfig\" and let the driver publish k8s.cni.cncf.io/resourceName and k8s.cni.cncf.io/deviceID"
		}
		err = fmt.Errorf("%w: pod %s/%s: %s", roles.ErrConf, namespace, pod, what)
	}
	slices.Sort(ids)
	return ids, err
}

// published returns the devices of the pod's claims that a resource names, as their drivers publish them.
func (d *devices) published(ctx context.Context, namespace, pod, resource string) (ids []string, err error) {
	node, err := d.api.NodeName(ctx, namespace, pod)
	var driver string
	var published []rest.ResourceSlice
	for i := range d.claimed {
		c := &d.claimed[i]
		if err == nil && c.Driver != driver && c.Driver != "" {
			driver = c.Driver
			published, err = d.api.ResourceSlices(ctx, node, driver)
		}
		for _, s := range published {
			for _, p := range s.Spec.Devices {
				if s.Spec.Pool.Name == c.Pool && p.Name == c.Device && p.Attributes.ID.String != "" &&
					(resource == p.Attributes.Resource.String || resource == c.Claim || resource == c.Driver) {
					ids = append(ids, p.Attributes.ID.String)
				}
			}
		}
	}
	if err != nil {
		return nil, tryAgain(err)
	}
	return ids, nil
}
