package netops

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/conntrack"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// HasPodTable reports whether the table exists that enforces policies on pods.
func (n *Net) HasPodTable(ctx context.Context) (bool, error) {
	return n.nft.Exists(ctx, podtable.Table().Message(unix.NFT_MSG_GETTABLE, 0))
}

// Connection is a tracked connection: its client's address before, and its server's address and port after translation.
type Connection = conntrack.Tracked

// Connections lists the tracked connections of the host's namespace.
func (n *Net) Connections(ctx context.Context) ([]Connection, error) {
	c, err := n.host.conntrack()
	if err != nil {
		return nil, err
	}
	return c.All(ctx)
}

// ProtocolName returns the name of an IP protocol in lower case, or its number.
func ProtocolName(number uint8) string { return nft.ProtocolName(number) }
