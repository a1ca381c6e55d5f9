package netops

import (
	"context"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Counters are what a link has counted since it was made (struct rtnl_link_stats64).
type Counters struct {
	ReceivedPackets, SentPackets, ReceivedBytes, SentBytes  uint64
	ReceiveErrors, SendErrors, ReceivedDropped, SentDropped uint64
}

// sizeofStatsHeader is the size of struct if_stats_msg of linux/if_link.h.
const sizeofStatsHeader = 12

// Counters reads the counters of the host's links, by index.
func (n *Net) Counters(ctx context.Context) (map[int]Counters, error) {
	c, err := n.host.socket()
	if err != nil {
		return nil, err
	}
	const filter = 1 << (unix.IFLA_STATS_LINK_64 - 1)
	body := binary.NativeEndian.AppendUint32(make([]byte, sizeofStatsHeader-4), filter)
	all := map[int]Counters{}
	err = c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETSTATS, Body: body}, func() { clear(all) }, func(_ uint16, data []byte) error {
		if len(data) < sizeofStatsHeader {
			return fmt.Errorf("statistics of %d bytes: %w", len(data), unix.EBADMSG)
		}
		v, err := nlconn.Find(data[sizeofStatsHeader:], unix.IFLA_STATS_LINK_64)
		if err != nil || len(v) < 8*8 {
			return err
		}
		at := func(i int) uint64 { return nlconn.Long(v[8*i:]) }
		all[int(int32(binary.NativeEndian.Uint32(data[4:])))] = Counters{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)}
		return nil
	})
	return all, nlconn.Explain(err, "read the counters of links")
}
