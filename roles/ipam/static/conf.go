// Package static is the IPAM role static: addresses from the configuration or the runtime, with the
// keys of the reference plugin. It has no state.
package static

import (
	"bytes"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
)

// Conf is static's network configuration. The role gets the complete configuration of the plugin
// that delegates to it. Its own keys are in "ipam".
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// RuntimeConfig has the runtime's values of declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// Args has conventional arguments (CNI conventions, "args.cni").
	Args Args `json:"args,omitzero"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "static".
	Type string `json:"type,omitempty"`
	// Addresses are the container's addresses, in this order. Required if the runtime gives none.
	Addresses []Address `json:"addresses,omitempty"`
	// Routes are copied to the result.
	Routes []roles.Route `json:"routes,omitempty"`
	// DNS is copied to the result.
	DNS types.DNS `json:"dns,omitzero"`
}

// Address is one address of the container.
type Address struct {
	// Address is the address with the network's prefix length, such as 10.1.0.5/24. Required.
	Address addressText `json:"address,omitempty"`
	// Gateway is in the result. Default: none.
	Gateway string `json:"gateway,omitempty"`
}

// addressText is an address with a prefix length, as text.
type addressText string

// UnmarshalJSON ignores an object: a Go program that writes the reference's structure adds the member
// "Address", a net.IPNet, and names of members do not depend on upper case.
func (a *addressText) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte("{")) {
		return nil
	}
	return json.Unmarshal(raw, (*string)(a))
}

// RuntimeConfig has the capability ips.
type RuntimeConfig struct {
	// IPs are addresses with prefix lengths. They replace all others.
	IPs []string `json:"ips,omitempty"`
}

// Args is the "args" object.
type Args struct {
	CNI CNIArgs `json:"cni,omitzero"`
}

// CNIArgs is the "args.cni" object.
type CNIArgs struct {
	// IPs are addresses with prefix lengths. They replace those of the configuration and of CNI_ARGS.
	IPs []string `json:"ips,omitempty"`
}
