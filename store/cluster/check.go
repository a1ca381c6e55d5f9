package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Bounds for a record, so that a hostile record cannot exhaust the memory.
const (
	maxName        = 253
	maxBackendType = 64
	maxBackendData = 4096
)

// Check returns all faults of a node's record that do not depend on the network's configuration, as
// one ErrInvalid. Registries check every record that they read or publish.
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
			fault("podCIDRs: %s is not a network", p)
		case p != p.Masked():
			fault("podCIDRs: %s has bits set beyond its length: write %s", p, p.Masked())
		case a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || p.Bits() == 0:
			fault("podCIDRs: %s is not a pod network", p)
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
	if err := n.Author.check(); err != nil {
		faults = append(faults, err)
	}
	data("backendData", n.BackendData)
	data("backendV6Data", n.BackendV6Data)
	return errors.Join(faults...)
}

func reachable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// CheckName returns an error for a name that would have another meaning as part of a path.
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

// Same reports whether two nodes have equal records. It compares the values of backend data, not the JSON
// text.
func (n *Node) Same(o *Node) bool {
	return n.Name == o.Name && n.PublicIP == o.PublicIP && n.PublicIPv6 == o.PublicIPv6 && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		n.BackendType == o.BackendType && sameJSON(n.BackendData, o.BackendData) && sameJSON(n.BackendV6Data, o.BackendV6Data) && n.Author == o.Author
}
