package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
)

// Node has the fields of a Node that are used here.
type Node struct {
	Object
	Spec struct {
		PodCIDR  string   `json:"podCIDR"  protobuf:"1"`
		PodCIDRs []string `json:"podCIDRs" protobuf:"7"`
	} `json:"spec" protobuf:"2"`
}

// Pod has the fields of a pod that are used here.
type Pod struct {
	Object
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	} `json:"spec"`
}

// ResourceSlice has the fields of a driver's devices that are used here.
type ResourceSlice struct {
	Spec struct {
		Pool struct {
			Name string `json:"name"`
		} `json:"pool"`
		Devices []Device `json:"devices"`
	} `json:"spec"`
}

// Device is a device in a ResourceSlice.
type Device struct {
	Name string `json:"name"`
	// Attributes are those that Multus reads, too: the resource, and what plugins get as the ID.
	Attributes struct {
		Resource Attribute `json:"k8s.cni.cncf.io/resourceName"`
		ID       Attribute `json:"k8s.cni.cncf.io/deviceID"`
	} `json:"attributes"`
}

// Attribute is the text of an attribute. It is empty for an attribute of another type.
type Attribute struct {
	String string `json:"string"`
}

// Requirement is a requirement of a selector for a label or a field.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

// Matches reports whether the value of the key, if there is one, meets the requirement. That of an unknown operator is not
// met.
func (r *Requirement) Matches(value string, has bool) bool {
	switch r.Operator {
	case "In":
		return has && slices.Contains(r.Values, value)
	case "NotIn":
		return !has || !slices.Contains(r.Values, value)
	case "Exists":
		return has
	case "DoesNotExist":
		return !has
	}
	is, err := strconv.ParseInt(value, 10, 64)
	limit, errLimit := strconv.ParseInt(strings.Join(r.Values, " "), 10, 64)
	if !has || err != nil || errLimit != nil {
		return false
	}
	return r.Operator == "Gt" && is > limit || r.Operator == "Lt" && is < limit
}

// Network is a NetworkAttachmentDefinition of k8s.cni.cncf.io/v1.
type Network struct {
	Object
	Spec struct {
		// Config is the CNI configuration. It is empty if a file of the node has the configuration.
		Config string `json:"config"`
	} `json:"spec"`
}

// Pod reads a pod. It needs the verb get on pods.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	path, err := podPath(namespace, name)
	if err != nil {
		return nil, err
	}
	p := &Pod{}
	if err := c.Get(ctx, path, p); err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return p, nil
}

// AnnotatePod sets annotations of a pod, or removes those that are nil. With a uid it changes no later
// pod of the same name and returns ErrConflict. It needs the verb patch on pods/status.
func (c *Client) AnnotatePod(ctx context.Context, namespace, name, uid string, annotations map[string]*string) error {
	path, err := podPath(namespace, name)
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, path+"/status", MergePatch, Annotations(uid, "", annotations), nil); err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Annotations returns the merge patch that sets annotations, or removes those that are nil. With a uid
// it applies only to the object with that uid, and with a version only to that version.
func Annotations(uid, version string, annotations map[string]*string) any {
	type metadata struct {
		UID         string             `json:"uid,omitempty"`
		Version     string             `json:"resourceVersion,omitempty"`
		Annotations map[string]*string `json:"annotations"`
	}
	return struct {
		Metadata metadata `json:"metadata"`
	}{metadata{uid, version, annotations}}
}

// Network reads a NetworkAttachmentDefinition. It needs the verb get on
// network-attachment-definitions. The error is also ErrNotFound if the cluster does not have that
// kind.
func (c *Client) Network(ctx context.Context, namespace, name string) (*Network, error) {
	for what, s := range map[string]string{"namespace": namespace, "network": name} {
		if err := CheckName(what, s); err != nil {
			return nil, err
		}
	}
	n := &Network{}
	path := Path("apis", "k8s.cni.cncf.io", "v1", "namespaces", namespace, "network-attachment-definitions", name)
	if err := c.Get(ctx, path, n); err != nil {
		return nil, fmt.Errorf("get network-attachment-definition %s/%s: %w", namespace, name, err)
	}
	return n, nil
}

// NodeName returns the node of a pod. The agent uses it with its own pod's name.
func (c *Client) NodeName(ctx context.Context, namespace, pod string) (string, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return "", err
	}
	if p.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s/%s: %w: it has no spec.nodeName", namespace, pod, cluster.ErrInvalid)
	}
	return p.Spec.NodeName, nil
}

// ResourceSlices returns the devices of a driver on a node. It needs the verb list on resourceslices of resource.k8s.io, and Kubernetes 1.34.
func (c *Client) ResourceSlices(ctx context.Context, node, driver string) ([]ResourceSlice, error) {
	resp, err := c.do(ctx, &request{
		method: http.MethodGet, path: "/apis/resource.k8s.io/v1/resourceslices",
		query: url.Values{"fieldSelector": {"spec.nodeName=" + node + ",spec.driver=" + driver}},
	})
	var list struct {
		Items []ResourceSlice `json:"items"`
	}
	if err == nil {
		err = decode(ctx, resp, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list resourceslices of driver %s: %w", driver, err)
	}
	return list.Items, nil
}

// ResourceClaimUIDs returns the UIDs of all ResourceClaims of the cluster at one time after the call, or an error. It needs the verb
// list on resourceclaims of resource.k8s.io, and Kubernetes 1.34.
func (c *Client) ResourceClaimUIDs(ctx context.Context) (map[string]bool, error) {
	uids := map[string]bool{}
	_, err := List(ctx, c, "/apis/resource.k8s.io/v1/resourceclaims", func(o *Object) { uids[o.Metadata.UID] = true })
	if err == nil && uids[""] {
		err = fmt.Errorf("%w: one has no uid", cluster.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("list resourceclaims: %w", err)
	}
	return uids, nil
}

func podPath(namespace, name string) (string, error) {
	if err := CheckName("namespace", namespace); err != nil {
		return "", err
	}
	if err := CheckName("pod", name); err != nil {
		return "", err
	}
	return Path("api", "v1", "namespaces", namespace, "pods", name), nil
}
