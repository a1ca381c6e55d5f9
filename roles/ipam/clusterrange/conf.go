package clusterrange

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/sticky"
)

// Conf is the network configuration of the role range. Its keys in "ipam" are those of whereabouts.
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// Args is the object "args".
	Args Args `json:"args,omitzero"`
}

// Args is the object "args".
type Args struct {
	CNI CNIArgs `json:"cni,omitzero"`
}

// CNIArgs is the object "args.cni".
type CNIArgs struct {
	// IPAMClaim is the name of an IPAMClaim of the pod's namespace, whose addresses the container gets. multi sets it.
	IPAMClaim string `json:"ipam-claim-reference,omitempty"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "range" or "whereabouts".
	Type string `json:"type,omitempty"`
	// Range is a CIDR, such as 192.168.2.0/24, or its first and last address, such as
	// 192.168.2.10-192.168.2.99/24. Host bits have no effect. Every node has the same. A container gets one address.
	Range string `json:"range,omitempty"`
	// RangeStart is the first address of range. Default: the first that a host can have.
	RangeStart string `json:"range_start,omitempty"`
	// RangeEnd is the last address of range. Default: the last that a host can have.
	RangeEnd string `json:"range_end,omitempty"`
	// Exclude has addresses and CIDRs of range that are not given out.
	Exclude []string `json:"exclude,omitempty"`
	// IPRanges are further ranges. A container gets one address of each.
	IPRanges []Range `json:"ipRanges,omitempty"`
	// Gateway is in the result, for the ranges of its family, and is not given out.
	Gateway string `json:"gateway,omitempty"`
	// Routes are copied to the result.
	Routes []roles.Route `json:"routes,omitempty"`
	// DNS is copied to the result.
	DNS types.DNS `json:"dns,omitzero"`
	// Overlapping means that networks whose ranges overlap share one pool, so that an address is given out
	// once. With false the network has a pool of its own. Default true.
	Overlapping *bool `json:"enable_overlapping_ranges,omitempty"`
	// NetworkName is the name of a pool that the networks with this name share, instead of the pool of all
	// networks: the same addresses exist in several networks that are not connected.
	NetworkName string `json:"network_name,omitempty"`
	// Sticky keeps a container's addresses for its pod, on every node.
	Sticky *Sticky `json:"sticky,omitempty"`
	// Addresses are further addresses of whereabouts. They are refused.
	Addresses json.RawMessage `json:"addresses,omitempty"`

	// Kubernetes has no effect: the agent has the connection.
	Kubernetes json.RawMessage `json:"kubernetes,omitempty"`
	// NodeSliceSize has no effect: blocks grow with the use.
	NodeSliceSize string `json:"node_slice_size,omitempty"`
	// ConfigurationPath has no effect: write the keys into the network's configuration.
	ConfigurationPath string `json:"configuration_path,omitempty"`
	// LogFile has no effect.
	LogFile string `json:"log_file,omitempty"`
	// LogLevel has no effect.
	LogLevel string `json:"log_level,omitempty"`
	// LeaderLeaseDuration has no effect: there is no leader.
	LeaderLeaseDuration json.RawMessage `json:"leader_lease_duration,omitempty"`
	// LeaderRenewDeadline has no effect.
	LeaderRenewDeadline json.RawMessage `json:"leader_renew_deadline,omitempty"`
	// LeaderRetryPeriod has no effect.
	LeaderRetryPeriod json.RawMessage `json:"leader_retry_period,omitempty"`
	// ReconcilerCronExpression has no effect: the agent collects addresses of dead containers each minute.
	ReconcilerCronExpression string `json:"reconciler_cron_expression,omitempty"`
	// SleepForRace has no effect.
	SleepForRace json.RawMessage `json:"sleep_for_race,omitempty"`
	// Datastore has no effect: the agent's flags select the registry.
	Datastore string `json:"datastore,omitempty"`
	// EtcdHost has no effect.
	EtcdHost string `json:"etcd_host,omitempty"`
	// EtcdUsername has no effect.
	EtcdUsername string `json:"etcd_username,omitempty"`
	// EtcdPassword has no effect.
	EtcdPassword string `json:"etcd_password,omitempty"`
	// EtcdKeyFile has no effect.
	EtcdKeyFile string `json:"etcd_key_file,omitempty"`
	// EtcdCertFile has no effect.
	EtcdCertFile string `json:"etcd_cert_file,omitempty"`
	// EtcdCACertFile has no effect.
	EtcdCACertFile string `json:"etcd_ca_cert_file,omitempty"`
}

// Sticky is the object "ipam.sticky".
type Sticky struct {
	// Key says what addresses are kept for, as host-local's: "pod", "container-name" or "mac". Default "pod".
	Key string `json:"key,omitempty"`
	// TTL is how long addresses are kept after DEL: "5m", a number of seconds, or "never". Default "5m".
	TTL sticky.Span `json:"ttl,omitzero"`
}

// ignored are the keys that have no effect.
func ignored() []string {
	return []string{
		"ipam.kubernetes", "ipam.node_slice_size", "ipam.configuration_path", "ipam.log_file", "ipam.log_level", "ipam.leader_lease_duration",
		"ipam.leader_renew_deadline", "ipam.leader_retry_period", "ipam.reconciler_cron_expression", "ipam.sleep_for_race", "ipam.datastore",
		"ipam.etcd_host", "ipam.etcd_username", "ipam.etcd_password", "ipam.etcd_key_file", "ipam.etcd_cert_file", "ipam.etcd_ca_cert_file",
	}
}

// Range is one of ipRanges.
type Range struct {
	// Range is as ipam.range. Required.
	Range string `json:"range,omitempty"`
	// RangeStart is the first address.
	RangeStart string `json:"range_start,omitempty"`
	// RangeEnd is the last address.
	RangeEnd string `json:"range_end,omitempty"`
	// Exclude has addresses and CIDRs that are not given out.
	Exclude []string `json:"exclude,omitempty"`
}
