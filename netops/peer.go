package netops

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HostEnd returns the host's end of the veth pair whose other end is link in ns.
// The error wraps ErrNotExist if link is absent, is not a veth, or has its other
// end in a namespace other than the host's.
func (n *Net) HostEnd(ctx context.Context, ns *Namespace, link string) (LinkInfo, error) {
	_, own, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return LinkInfo{}, err
	}
	if own.Kind != "veth" {
		return LinkInfo{}, fmt.Errorf("host's end of link %q, which is of kind %q, not \"veth\": %w", link, own.Kind, ErrNotExist)
	}
	host, err := n.host.socket()
	if err != nil {
		return LinkInfo{}, err
	}
	// A link index is unique in one namespace only. Therefore check that the
	// host's link with that index has the link in ns as its own peer.
	have, err := host.LinkByIndex(ctx, own.Peer)
	if err != nil {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w", link, err)
	}
	id, err := host.NamespaceID(ctx, int(ns.fd))
	if err != nil {
		return LinkInfo{}, nlconn.Explain(err, fmt.Sprintf("number of namespace %q", ns.path))
	}
	if have.Kind != "veth" || have.Peer != own.Index || !have.PeerElsewhere || have.PeerNamespace != id {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w in the host's namespace", link, ErrNotExist)
	}
	return newLinkInfo(have), nil
}
