// Package firewall is the CNI role "firewall": it restricts the traffic to
// containers and allows the host to forward their traffic. It has the keys of
// the reference plugin.
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
	// Backend is where rules that accept the containers' traffic are added:
	// "auto" (default) to every firewall of the host that would drop it,
	// "nftables" to none, "iptables" to iptables' filter table, "firewalld" to
	// a zone of firewalld. Ingress policies are in nftables for every backend.
	Backend string `json:"backend,omitempty"`
	// IptablesAdminChainName is the chain of iptables' filter table that is
	// evaluated before cnibox's rules in it. With backend "auto" it is used if it
	// has rules. Default "CNI-ADMIN".
	IptablesAdminChainName string `json:"iptablesAdminChainName,omitempty"`
	// FirewalldZone is the zone of firewalld that gets the containers'
	// addresses as sources. Default "trusted".
	FirewalldZone string `json:"firewalldZone,omitempty"`
	// IngressPolicy is "open" (default), "same-bridge" or "isolated". "open"
	// accepts all traffic to the containers. "same-bridge" drops traffic from
	// other networks that have an ingress policy, except replies and traffic to
	// published ports. "isolated" also drops traffic between the network's own
	// containers.
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

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	c.Backend = cmp.Or(c.Backend, auto)
	c.IptablesAdminChainName = cmp.Or(c.IptablesAdminChainName, "CNI-ADMIN")
	c.FirewalldZone = cmp.Or(c.FirewalldZone, "trusted")
	c.IngressPolicy = cmp.Or(c.IngressPolicy, open)
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if !slices.Contains([]string{auto, nftables, iptables, firewalld}, c.Backend) {
		f.Addf("backend", "%q is not known: use \"auto\", \"nftables\", \"iptables\" or \"firewalld\"", c.Backend)
	}
	if err := netops.CheckChainName(c.IptablesAdminChainName); err != nil {
		f.Addf("iptablesAdminChainName", "%s", err)
	}
	invalid := func(r rune) bool { return !unicode.IsPrint(r) || r == '/' || unicode.IsSpace(r) }
	if strings.ContainsFunc(c.FirewalldZone, invalid) {
		f.Addf("firewalldZone", "%q is not the name of a zone: use one that `firewall-cmd --get-zones` lists", c.FirewalldZone)
	}
	if !slices.Contains([]string{open, sameBridge, isolated}, c.IngressPolicy) {
		f.Addf("ingressPolicy", "%q is not known: use \"open\", \"same-bridge\" or \"isolated\"", c.IngressPolicy)
	}
	return f.Err()
}

// usesBackend reports whether the configuration may add accepting rules to a
// backend.
func (c *Conf) usesBackend(backend string) bool { return c.Backend == auto || c.Backend == backend }
