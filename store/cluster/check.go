package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Bounds of what a record holds, so that what is hostile cannot fill the memory.
const (
	maxName        = 253
	maxBackendType = 64
	maxBackendData = 4096
)

// Check tells, all at once, what keeps a node's record from being used whatever
// the network is: it is what every engine asks of a record before it becomes part
// of a snapshot, and of what a node wants to publish. The error is an ErrInvalid.
func (n *Node) Check() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...)))
	}
	if n.PublicIP.IsValid() && (!n.PublicIP.Is4() || !reachable(n.PublicIP)) {
		fault("publicIP is %s: not the IPv4 address of a node", n.PublicIP)
	}
	if n.PublicIPv6.IsValid() && (!isIPv6(n.PublicIPv6) || n.PublicIPv6.Zone() != "" || !reachable(n.PublicIPv6)) {
		fault("publicIPv6 is %s: not the IPv6 address of a node", n.PublicIPv6)
	}
	for _, p := range n.PodCIDRs {
		switch a := p.Addr(); {
		case !p.IsValid() || a.Is4In6():
			fault("podCIDRs: %s is no network", p)
		case p != p.Masked():
			fault("podCIDRs: %s has bits set beyond its length: %s is meant", p, p.Masked())
		case a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || p.Bits() == 0:
			fault("podCIDRs: %s is no network of pods", p)
		}
	}
	if len(n.PodCIDRs) > 2 || len(n.PodCIDRs) == 2 && (!n.PodCIDRs[0].Addr().Is4() || n.PodCIDRs[1].Addr().Is4()) {
		fault("podCIDRs: give one of each family, IPv4 first")
	}
	if len(n.BackendType) > maxBackendType {
		fault("backendType is longer than %d bytes", maxBackendType)
	}
	data := func(key string, data json.RawMessage) {
		if len(data) > maxBackendData {
			fault("%s is longer than %d bytes", key, maxBackendData)
		} else if len(data) > 0 && !json.Valid(data) {
			fault("%s is not JSON", key)
		}
	}
	data("backendData", n.BackendData)
	data("backendV6Data", n.BackendV6Data)
	return errors.Join(faults...)
}

func reachable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// CheckName refuses what cannot be the name of a node, and would mean something
// else as part of a path.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName && !strings.ContainsAny(name[:1]+name[len(name)-1:], ".-_")
	for _, c := range name {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	}
	if !ok {
		return fmt.Errorf("node name %q: %w: give letters, digits, '.', '-' and '_', a letter or digit first and last, at most %d", shorten(name), ErrInvalid, maxName)
	}
	return nil
}

// Same tells whether two nodes are told alike, and wished alike. Backend data counts by what it
// says, not by how it is written.
func (n *Node) Same(o *Node) bool {
	return n.Name == o.Name && n.Wishes == o.Wishes && n.PublicIP == o.PublicIP && n.PublicIPv6 == o.PublicIPv6 && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		n.BackendType == o.BackendType && sameJSON(n.BackendData, o.BackendData) && sameJSON(n.BackendV6Data, o.BackendV6Data)
}
