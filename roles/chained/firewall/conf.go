// Package firewall is the CNI role "firewall": what may reach containers and
// what of theirs the host forwards, with the keys of the reference plugin.
package firewall

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the firewall role.
type Conf struct {
	roles.NetConf
	// Backend says where rules that accept are wanted: "auto" (default) in every
	// firewall of the host that would drop the containers' traffic, "nftables" in
	// none, "iptables" in iptables' filter table, "firewalld" in a zone of
	// firewalld. Ingress policies are in nftables whatever the backend.
	Backend string `json:"backend,omitempty"`
	// IptablesAdminChainName is the chain of iptables' filter table that is asked
	// before our rules in it. Default "CNI-ADMIN".
	IptablesAdminChainName string `json:"iptablesAdminChainName,omitempty"`
	// FirewalldZone is the zone that the containers' addresses are sources of.
	// Default "trusted".
	FirewalldZone string `json:"firewalldZone,omitempty"`
	// IngressPolicy is "open" (default): anything may reach the containers;
	// "same-bridge": from other networks that have a policy only answers and what
	// is sent to published ports; or "isolated": not each other's traffic either.
	IngressPolicy string `json:"ingressPolicy,omitempty"`
}

// The backends.
const (
	auto      = "auto"
	nftables  = "nftables"
	iptables  = "iptables"
	firewalld = "firewalld"
)

// The ingress policies.
const (
	open       = "open"
	sameBridge = "same-bridge"
	isolated   = "isolated"
)

func (c *Conf) SetDefaults() {
	c.Backend = cmp.Or(c.Backend, auto)
	c.IptablesAdminChainName = cmp.Or(c.IptablesAdminChainName, "CNI-ADMIN")
	c.FirewalldZone = cmp.Or(c.FirewalldZone, "trusted")
	c.IngressPolicy = cmp.Or(c.IngressPolicy, open)
}

// Validate reports every fault of a configuration with defaults.
func (c *Conf) Validate() error {
	var f roles.Faults
	if !slices.Contains([]string{auto, nftables, iptables, firewalld}, c.Backend) {
		f.Addf("backend", "%q is not known: use \"auto\", \"nftables\", \"iptables\" or \"firewalld\"", c.Backend)
	}
	if err := netops.CheckChainName(c.IptablesAdminChainName); err != nil {
		f.Addf("iptablesAdminChainName", "%s", err)
	}
	bad := func(r rune) bool { return !unicode.IsPrint(r) || r == '/' || unicode.IsSpace(r) }
	if strings.ContainsFunc(c.FirewalldZone, bad) {
		f.Addf("firewalldZone", "%q is no name of a zone: use one that `firewall-cmd --get-zones` lists", c.FirewalldZone)
	}
	if !slices.Contains([]string{open, sameBridge, isolated}, c.IngressPolicy) {
		f.Addf("ingressPolicy", "%q is not known: use \"open\", \"same-bridge\" or \"isolated\"", c.IngressPolicy)
	}
	return f.Err()
}

// accepts tells whether rules that accept may be wanted in a backend's place.
func (c *Conf) accepts(backend string) bool { return c.Backend == auto || c.Backend == backend }
