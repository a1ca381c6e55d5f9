package netops

import "net/netip"

// OverlayNAT is what the host's packet filter does for a pod network of one
// address family, in a table of its own, "inet cnibox_overlay".
type OverlayNAT struct {
	// Network is the cluster's pod network, Subnet this node's part of it.
	Network, Subnet netip.Prefix
	// Masquerade hides pods behind the node's addresses in traffic with others
	// than pods, and others behind them in forwarded traffic to remote pods.
	Masquerade bool
	// Exceptions are networks that pods reach under their own addresses.
	Exceptions []netip.Prefix
	// Forward lets the network's packets pass where iptables' FORWARD chain refuses.
	Forward bool
	// Tunnel, if not nil, drops tunnelled packets of strangers.
	Tunnel *TunnelFilter
}

// TunnelFilter accepts VXLAN packets of one VNI from known nodes only.
type TunnelFilter struct {
	Port uint16
	VNI  uint32
	// Sources are the other nodes' addresses.
	Sources []netip.Addr
}
