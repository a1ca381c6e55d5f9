package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// HasKind returns nil if the kernel can make links of a kind. Otherwise the error wraps
// ErrNotSupported, or ErrPermission without CAP_NET_ADMIN. The kernel loads the kind's module, but HasKind makes no link: it
// requests a link with 0 queues. The kernel looks up the kind first and then refuses
// that request (rtnl_create_link in net/core/rtnetlink.c). HasKind does not work for
// "tun", because netlink cannot make such links.
func (n *Net) HasKind(ctx context.Context, kind string) error {
	c, err := n.host.socket()
	if err != nil {
		return err
	}
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, 0)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	(&rtnl.Link{Kind: kind}).AddKind(&m.Body)
	m.Uint32(unix.IFLA_NUM_TX_QUEUES, 0)
	err = c.One(ctx, m)
	if errors.Is(err, unix.EPERM) {
		return nlconn.Explain(err, fmt.Sprintf("probe links of kind %q", kind))
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil // EINVAL: the kind exists, and the queues or the kind's attributes are invalid.
	}
	return fmt.Errorf("links of kind %q: %w: it has no module rtnl-link-%s", kind, ErrNotSupported, kind)
}
