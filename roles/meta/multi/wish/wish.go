// Package wish parses a pod's requests for networks and writes its network-status. It implements
// the annotations of the Kubernetes Network Custom Resource Definition De-facto Standard, version
// 1.3 ("the standard"), of Multus and of CNI-Genie. The functions have no side effects.
//
// The standard says that an invalid annotation is ignored. This package returns an error with the
// annotation, the element and the key, as Multus does. Otherwise a pod would start without its
// networks and fail later.
package wish

import (
	"encoding/json"
	"net/netip"
)

// The keys of the annotations.
const (
	// NetworksKey lists the networks that the pod requests in addition to the default one (the
	// standard, section 4.1).
	NetworksKey = "k8s.v1.cni.cncf.io/networks"
	// DefaultKey names a network in place of the default one (Multus).
	DefaultKey = "v1.multus-cni.io/default-network"
	// StatusKey has the pod's attachments (the standard, section 5.1).
	StatusKey = "k8s.v1.cni.cncf.io/network-status"
	// PluginsKey selects from the eligible default networks (CNI-Genie).
	PluginsKey = "cni"
	// ExtrasKey is cnibox's own key of an element of NetworksKey. See Extras.
	ExtrasKey = "io.github.cnibox"
)

// Wishes are the requests in a pod's annotations.
type Wishes struct {
	// Default replaces the default network unless it is nil.
	Default *Network
	// Networks are the additional networks in the order of the annotation. A network may be present
	// several times.
	Networks []Network
}

// Network is one network that a pod requests, with its parameters.
type Network struct {
	// Namespace is the network's namespace. The default is the pod's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// IfName is the requested interface name, or empty.
	IfName string `json:"interface,omitempty"`
	// IPs are addresses in canonical form, each with or without a prefix length.
	IPs []string `json:"ips,omitempty"`
	// MAC is in colon notation, or empty.
	MAC string `json:"mac,omitempty"`
	// InfinibandGUID is eight bytes in colon notation, or empty.
	InfinibandGUID string `json:"infiniband-guid,omitempty"`
	// CNIArgs is the unchanged JSON object for the plugins' args.cni.
	CNIArgs json.RawMessage `json:"cni-args,omitempty"`
	// PortMappings and Bandwidth are the unchanged values for runtimeConfig.
	PortMappings json.RawMessage `json:"portMappings,omitempty"`
	Bandwidth    json.RawMessage `json:"bandwidth,omitempty"`
	// DefaultRoute are gateways, at most one of each family. It is nil if the key is missing.
	DefaultRoute []netip.Addr `json:"default-route,omitzero"`
	// IPAMClaim is the name of an IPAMClaim object of the pod's namespace, or empty.
	IPAMClaim string `json:"ipam-claim-reference,omitempty"`
	// DeviceID is the device to use (Multus), or empty.
	DeviceID string `json:"deviceID,omitempty"`
	// Extras are cnibox's additional requests.
	Extras Extras `json:"io.github.cnibox,omitzero"`
}

// Extras is the value of ExtrasKey: requests that DANM has and Multus does not have.
type Extras struct {
	// IP is "none" for an interface without addresses, even if the network has ipam, or empty for
	// the network's own setting.
	IP string `json:"ip,omitempty"`
	// PolicyRoutes are routes for packets from this interface's addresses only.
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`
}

// PolicyRoute is an element of PolicyRoutes.
type PolicyRoute struct {
	Dst netip.Prefix `json:"dst"`
	// GW is the next hop. It is invalid for a destination on the link.
	GW netip.Addr `json:"gw,omitzero"`
}

// Plugin is one selected network of the annotation "cni".
type Plugin struct {
	// Name is the name of an eligible network or the type of its plugin.
	Name string
	// IfName is the requested interface name, or empty.
	IfName string
}
