package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HasKind returns nil when the kernel can make links of a kind, and an error
// wrapping ErrNotSupported when it cannot. The kind's module is loaded, as it is
// to make one. Nothing is made: the request is for a link without queues, which
// the kernel refuses after it looked for the kind (rtnl_create_link in
// net/core/rtnetlink.c). It does not serve for "tun", which netlink does not make.
func (n *Net) HasKind(ctx context.Context, kind string) error {
	c, err := n.host.socket()
	if err != nil {
		return err
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	err = c.One(ctx, nlconn.Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Data: []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC), info,
		nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(0)),
	}})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil // EINVAL, of the queues or of what the kind wants said; or EPERM, which tells nothing
	}
	return fmt.Errorf("links of kind %q: %w: it has no module rtnl-link-%s", kind, ErrNotSupported, kind)
}
