package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

var _ cluster.IPAMClaims = (*Registry)(nil)

// ipamClaim has the fields of an IPAMClaim that are used here
// (github.com/k8snetworkplumbingwg/ipamclaims, pkg/crd/ipamclaims/v1alpha1).
type ipamClaim struct {
	rest.Object
	Status struct {
		IPs      []string `json:"ips"`
		OwnerPod struct {
			Name string `json:"name"`
		} `json:"ownerPod"`
	} `json:"status"`
}

func ipamClaimPath(namespace, name string) (string, error) {
	err := errors.Join(rest.CheckName("namespace", namespace), rest.CheckName("name of an IPAMClaim", name))
	return rest.Path("apis", "k8s.cni.cncf.io", "v1alpha1", "namespaces", namespace, "ipamclaims", name), err
}

// IPAMClaim needs the verb get on ipamclaims.
func (r *Registry) IPAMClaim(ctx context.Context, namespace, name string) (*cluster.IPAMClaim, error) {
	path, err := ipamClaimPath(namespace, name)
	if err != nil {
		return nil, err
	}
	var o ipamClaim
	err = r.client.Get(ctx, path, &o)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get IPAMClaim %s/%s: %w", namespace, name, err)
	}
	return &cluster.IPAMClaim{Namespace: namespace, Name: name, UID: o.Metadata.UID, IPs: o.Status.IPs, Pod: o.Status.OwnerPod.Name}, nil
}

// AllocateIPAMClaim needs the verb patch on ipamclaims/status.
func (r *Registry) AllocateIPAMClaim(ctx context.Context, c *cluster.IPAMClaim) error {
	path, err := ipamClaimPath(c.Namespace, c.Name)
	if err != nil {
		return err
	}
	patch := map[string]any{
		"metadata": map[string]any{"uid": c.UID},
		"status": map[string]any{"ips": c.IPs, "ownerPod": map[string]any{"name": c.Pod}, "conditions": []any{map[string]any{
			"type": "IPsAllocated", "status": "True", "reason": "SuccessfulAllocation", "message": "cnibox has allocated the addresses",
			"lastTransitionTime": time.Now().UTC().Truncate(time.Second),
		}}},
	}
	if err := r.client.Patch(ctx, path+"/status", rest.MergePatch, patch, nil); err != nil {
		return fmt.Errorf("write status of IPAMClaim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}
