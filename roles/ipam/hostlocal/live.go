package hostlocal

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// liveness is what is asked about owners of leases; it is a value so that the
// tests can do without a kernel full of links.
type liveness struct {
	// netns describes the namespace that a path means now.
	netns func(path string) store.Netns
	// gone tells that a described namespace certainly exists no longer.
	gone func(store.Netns) bool
	// reap removes the dead of a network and returns how many addresses came free.
	reap func(ctx context.Context, h *roles.Host, network string) (freed int, err error)
	// reapOne removes an attachment if it is dead, and tells whether it was.
	reapOne func(ctx context.Context, h *roles.Host, key store.Key) (bool, error)
	// anyDead tells whether reap would find somebody. It changes nothing.
	anyDead func(ctx context.Context, h *roles.Host, network string) (bool, error)
}

func nodeLiveness() liveness {
	return liveness{netns: describeNetns, gone: node.NetnsGone, reap: node.Reap, reapOne: node.ReapOne, anyDead: node.AnyDead}
}

// describeNetns is node.ThisNetns for callers that hold no open namespace. A
// path that is no namespace now is recorded without the mount namespace: its
// owner is never judged by it, since it says nothing.
func describeNetns(path string) store.Netns {
	n := store.Netns{Path: path}
	var fs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return n
	}
	n = node.ThisNetns(path, nil)
	n.Dev, n.Inode = st.Dev, st.Ino
	return n
}
