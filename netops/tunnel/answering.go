package tunnel

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/reach"
)

// End is the other end of a tunnel: the MAC and an address of a node's VXLAN device.
type End = reach.Host

// AskTimes is how often an end is asked that does not answer.
const AskTimes = reach.AskTimes

// Answering asks the ends, which are of one address family, through a VXLAN device, and returns the addresses of those that answered within three seconds, with the
// number of requests until then. Without the device, or while it is down or has no address, asked is false.
func Answering(ctx context.Context, n *netops.Net, device string, ends []End) (answered map[netip.Addr]int, asked bool, err error) {
	l, err := n.Link(ctx, nil, device)
	if err != nil || !l.Up {
		return nil, false, err
	}
	addresses, err := n.Addresses(ctx, nil, device)
	if err != nil {
		return nil, false, err
	}
	same := func(p netip.Prefix) bool {
		return len(ends) > 0 && p.Addr().Is4() == ends[0].Addr.Is4() && p.Addr().IsGlobalUnicast()
	}
	i := slices.IndexFunc(addresses, same)
	mac, err := net.ParseMAC(l.MAC)
	if err != nil || i < 0 {
		return nil, false, err
	}
	answered, err = reach.Answering(ctx, l.Index, mac, addresses[i].Addr(), ends)
	return answered, err == nil, err
}
