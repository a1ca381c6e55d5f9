package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Names of what an administrator writes.
const (
	// Annotation of a Namespace has the addresses with which its pods leave the cluster: one IPv4 address, one IPv6 address, or both with
	// a comma between them.
	Annotation = "cnibox.io/egress-address"
	// NodeLabel of a Node says that the node may hold the addresses, unless its value is "false".
	NodeLabel = "cnibox.io/egress-node"
)

// Request is the annotation of a namespace.
type Request struct {
	Text string
	// addresses are those of IPv4 and IPv6. err is why no packet may leave.
	addresses [2]netip.Addr
	err       error
}

// parseRequest reads an annotation. allowed are the networks of -egress-networks.
func parseRequest(text string, allowed []netip.Prefix) Request {
	r := Request{Text: text}
	fail := func(format string, args ...any) Request {
		r.err = fmt.Errorf("annotation %s: "+format, append([]any{Annotation}, args...)...)
		return r
	}
	list := strings.Split(text, ",")
	if len(list) > 2 {
		return fail("%.100q has more than one address of each family", text)
	}
	for _, one := range list {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6():
			return fail("%.60q is not an IPv4 or IPv6 address", one)
		case r.addresses[familyIndex(a)].IsValid():
			return fail("%.100q has more than one address of each family", text)
		case !slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(a) }):
			return fail("%s is not in -egress-networks of the agents", a)
		}
		r.addresses[familyIndex(a)] = a
	}
	return r
}

// CheckNetworks returns an error for a network of -egress-networks that has addresses which no node can hold for others.
func CheckNetworks(all []netip.Prefix) error {
	var errs []error
	for _, p := range all {
		for _, text := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/10", "ff00::/8", "::ffff:0:0/96"} {
			if bad := netip.MustParsePrefix(text); bad.Overlaps(p) {
				errs = append(errs, fmt.Errorf("-egress-networks: %s overlaps %s, whose addresses no node can send from", p, bad))
			}
		}
	}
	return errors.Join(errs...)
}

func familyIndex(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// clouds are the providers that send packets only to and from addresses that they have given a node, by the scheme of Node.spec.providerID.
func clouds() []string {
	return []string{"aws", "azure", "gce", "alicloud", "digitalocean", "exoscale", "hcloud", "ibm", "linode", "oci", "scaleway", "vultr"}
}

// cloudOf returns the provider in a providerID if it owns the addresses of its nodes, or "".
func cloudOf(providerID string) string {
	scheme, _, _ := strings.Cut(providerID, ":")
	if slices.Contains(clouds(), scheme) {
		return scheme
	}
	return ""
}
