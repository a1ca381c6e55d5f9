package leasing

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Liveness has the functions that find and remove dead owners of leases. It is a value so
// that tests need no links in the kernel.
type Liveness struct {
	// Netns returns the namespace that is at a path now.
	Netns func(path string) store.Netns
	// Gone reports whether a recorded namespace certainly does not exist any more.
	Gone func(store.Netns) bool
	// Reap removes the dead attachments of a network and returns how many addresses
	// that released.
	Reap func(ctx context.Context, h *roles.Host, network string) (freed int, err error)
	// ReapOne removes an attachment if it is dead, and reports whether it was.
	ReapOne func(ctx context.Context, h *roles.Host, key store.Key) (bool, error)
	// AnyDead reports whether Reap would remove an attachment. It changes nothing.
	AnyDead func(ctx context.Context, h *roles.Host, network string) (bool, error)
}

// NodeLiveness returns the Liveness of this node.
func NodeLiveness() Liveness {
	return Liveness{Netns: describeNetns, Gone: attachment.NetnsGone, Reap: attachment.Reap, ReapOne: attachment.ReapOne, AnyDead: attachment.AnyDead}
}

// describeNetns is attachment.ThisNetns for callers without an open namespace. If the path is
// not a namespace now, it says nothing about the owner: it is recorded without the mount
// namespace, so that the owner does not count as dead if the path is absent later.
func describeNetns(path string) store.Netns {
	n := store.Netns{Path: path}
	var fs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return n
	}
	n = attachment.ThisNetns(path, nil)
	n.Dev, n.Inode = st.Dev, st.Ino
	return n
}
