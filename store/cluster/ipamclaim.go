package cluster

import "context"

// IPAMClaim is the Kubernetes object k8s.cni.cncf.io/v1alpha1 of this kind: addresses that a virtual machine
// keeps while its pods come and go.
type IPAMClaim struct {
	Namespace, Name string
	// UID differs from that of a former object with the same name.
	UID string
	// IPs are status.ips: addresses with a prefix length, or none before the first allocation.
	IPs []string
	// Pod is the name of the pod that has the addresses.
	Pod string
}

// IPAMClaims is implemented by a Registry with IPAMClaim objects.
type IPAMClaims interface {
	// IPAMClaim returns an object, or nil if it does not exist.
	IPAMClaim(ctx context.Context, namespace, name string) (*IPAMClaim, error)
	// AllocateIPAMClaim writes the status of an object: addresses, pod, and the condition that they are allocated.
	// An object with another UID is not changed.
	AllocateIPAMClaim(ctx context.Context, c *IPAMClaim) error
}
