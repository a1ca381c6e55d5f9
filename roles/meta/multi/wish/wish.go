// Package wish reads what a pod wishes of its networks, and writes what it got:
// the pod annotations of the Kubernetes Network Custom Resource Definition
// De-facto Standard, version 1.3 ("the standard"), of Multus and of CNI-Genie.
// It is pure: annotations in, values out.
//
// The standard has an annotation that cannot be read ignored. Here it is an
// error that names the annotation, the element and the key, as with Multus: a
// pod without the networks that it was written for would start, and fail later.
package wish

import (
	"encoding/json"
	"net/netip"
)

// The annotations, by their keys.
const (
	// NetworksKey lists the networks that the pod wishes beside the default one
	// (the standard, section 4.1).
	NetworksKey = "k8s.v1.cni.cncf.io/networks"
	// DefaultKey names the network that takes the place of the default one (Multus).
	DefaultKey = "v1.multus-cni.io/default-network"
	// StatusKey tells what the pod got (the standard, section 5.1).
	StatusKey = "k8s.v1.cni.cncf.io/network-status"
	// PluginsKey chooses among eligible default networks (CNI-Genie).
	PluginsKey = "cni"
	// ExtrasKey is our own key of an element of NetworksKey, see Extras.
	ExtrasKey = "io.github.cnibox"
)

// Wishes are what a pod's annotations say.
type Wishes struct {
	// Default takes the place of the default network; nil leaves it.
	Default *Network
	// Networks are the further networks, in the order of the annotation. The
	// same one may be there several times.
	Networks []Network
}

// Network is one network that a pod wishes to be attached to, and how.
type Network struct {
	// Namespace is the network's; the pod's where the annotation says none.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// IfName is the interface that is asked for, or empty.
	IfName string `json:"interface,omitempty"`
	// IPs are addresses, each with or without a prefix length, in the usual form.
	IPs []string `json:"ips,omitempty"`
	// MAC is in the usual colon form, or empty.
	MAC string `json:"mac,omitempty"`
	// InfinibandGUID is eight bytes in the usual colon form, or empty.
	InfinibandGUID string `json:"infiniband-guid,omitempty"`
	// CNIArgs is a JSON object, as it was written, for the plugins' args.cni.
	CNIArgs json.RawMessage `json:"cni-args,omitempty"`
	// PortMappings and Bandwidth are what runtimeConfig takes, as they were written.
	PortMappings json.RawMessage `json:"portMappings,omitempty"`
	Bandwidth    json.RawMessage `json:"bandwidth,omitempty"`
	// DefaultRoute are gateways, at most one of each family. nil: the annotation
	// has no such key.
	DefaultRoute []netip.Addr `json:"default-route,omitzero"`
	// IPAMClaim names an IPAMClaim object of the pod's namespace, or is empty.
	IPAMClaim string `json:"ipam-claim-reference,omitempty"`
	// DeviceID is the device to use (Multus), or empty.
	DeviceID string `json:"deviceID,omitempty"`
	// Extras are wishes that only we know.
	Extras Extras `json:"io.github.cnibox,omitzero"`
}

// Extras is the value of ExtrasKey: wishes that DANM knows and Multus does not.
type Extras struct {
	// IP is "none" for an interface without addresses, whatever the network's
	// ipam says; empty leaves it to the network.
	IP string `json:"ip,omitempty"`
	// PolicyRoutes are routes for what is sent from this interface's addresses,
	// and for nothing else.
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`
}

// PolicyRoute is one of them.
type PolicyRoute struct {
	Dst netip.Prefix `json:"dst"`
	// GW is the next hop; invalid for a destination on the link.
	GW netip.Addr `json:"gw,omitzero"`
}

// Plugin is one choice of the annotation "cni".
type Plugin struct {
	// Name is that of an eligible network or its plugin's type.
	Name string
	// IfName is the interface that is asked for, or empty.
	IfName string
}
