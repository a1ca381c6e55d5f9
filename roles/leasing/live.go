package leasing

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// Liveness is what is asked about owners of leases; it is a value so that the
// tests can do without a kernel full of links.
type Liveness struct {
	// Netns describes the namespace that a path means now.
	Netns func(path string) store.Netns
	// Gone tells that a described namespace certainly exists no longer.
	Gone func(store.Netns) bool
	// Reap removes the dead of a network and returns how many addresses came free.
	Reap func(ctx context.Context, h *roles.Host, network string) (freed int, err error)
	// ReapOne removes an attachment if it is dead, and tells whether it was.
	ReapOne func(ctx context.Context, h *roles.Host, key store.Key) (bool, error)
	// AnyDead tells whether Reap would find somebody. It changes nothing.
	AnyDead func(ctx context.Context, h *roles.Host, network string) (bool, error)
}

// NodeLiveness asks the node.
func NodeLiveness() Liveness {
	return Liveness{Netns: describeNetns, Gone: record.NetnsGone, Reap: record.Reap, ReapOne: record.ReapOne, AnyDead: record.AnyDead}
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
	n = record.ThisNetns(path, nil)
	n.Dev, n.Inode = st.Dev, st.Ino
	return n
}
