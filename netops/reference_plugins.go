package netops

import "net/netip"

// ReferencePluginAttachment names an attachment that the reference plugins made.
type ReferencePluginAttachment struct {
	Network, ContainerID, IfName string
	// Addresses are the known addresses of the attachment. A rule that names an
	// address is removed only if it is one of them. If there are none, all rules
	// of the container are removed.
	Addresses []netip.Addr
	// Others are the addresses of the container's other attachments. The
	// reference plugins name some rules only by container.
	Others []netip.Addr
	// Shares reports whether one of the other attachments has the same network. The
	// iptables backends use one chain for both.
	Shares bool
}
