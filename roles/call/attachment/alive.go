package attachment

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// ThisNetns returns a namespace's description for a record.
func ThisNetns(path string, ns *netops.Namespace) store.Netns {
	n := store.Netns{Path: path, Mount: MountNamespace()}
	if ns != nil {
		n.Dev, n.Inode = ns.ID()
	}
	var dir unix.Stat_t
	if unix.Stat(filepath.Dir(path), &dir) == nil {
		n.DirDev, n.DirInode = dir.Dev, dir.Ino
	}
	return n
}

// OpenIfPresent opens the namespace that a call names. It returns nil if path is empty
// or no namespace is there, as after the end of a container. After an error the
// namespace may exist, so what was made in it must not be forgotten.
func OpenIfPresent(h *roles.Host, path string) (*netops.Namespace, error) {
	if path == "" {
		return nil, nil
	}
	ns, err := h.Net.OpenNamespace(path)
	if errors.Is(err, netops.ErrNoNetns) {
		h.Log.Debug("namespace does not exist, continuing without it", "error", err)
		return nil, nil
	}
	return ns, err
}

// OpenRecorded opens a recorded namespace. It returns nil if the namespace does not exist, or if
// another namespace is at its path.
func OpenRecorded(h *roles.Host, n store.Netns) (*netops.Namespace, error) {
	if n.Inode == 0 {
		return nil, nil
	}
	ns, err := OpenIfPresent(h, n.Path)
	if ns == nil || IsRecorded(ns, n) {
		return ns, err
	}
	return nil, ns.Close()
}

// IsRecorded reports whether a namespace is the recorded one.
func IsRecorded(ns *netops.Namespace, n store.Netns) bool {
	dev, inode := ns.ID()
	return dev == n.Dev && inode == n.Inode
}

// IsAnothers reports whether the record of another attachment has key's interface in ns, which may be nil: of
// another container in the same namespace, or of another network.
func IsAnothers(ctx context.Context, h *roles.Host, key store.Key, ns *netops.Namespace) (bool, error) {
	if ns == nil {
		return false, nil
	}
	all, err := Matching(ctx, h, func(a *store.Attachment) bool {
		return a.Key != key && a.IfName == key.IfName && IsRecorded(ns, a.Netns)
	})
	return len(all) > 0, err
}

// Matching returns the recorded attachments of all networks that match.
func Matching(ctx context.Context, h *roles.Host, match func(*store.Attachment) bool) (all []store.Attachment, err error) {
	all, err = store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	return slices.DeleteFunc(all, func(a store.Attachment) bool { return !match(&a) }), err
}

// MountNamespace returns the inode of our mount namespace, or 0 if it is unknown.
func MountNamespace() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return 0
	}
	return st.Ino
}

// Census reports which attachments are dead, from one read of the host's links.
type Census struct {
	links map[string]netops.LinkInfo
	mount uint64
}

// NewCensus reads the host's links.
func NewCensus(ctx context.Context, h *roles.Host) (*Census, error) {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, err
	}
	c := &Census{links: make(map[string]netops.LinkInfo, len(links)), mount: MountNamespace()}
	for _, l := range links {
		c.links[l.Name] = l
	}
	return c, nil
}

// Labelled reports whether a link has one of our labels: an attachment's, or that of
// shared links.
func Labelled(l netops.LinkInfo) bool { return strings.HasPrefix(l.Alias, LabelPrefix) }

// Dead reports whether an attachment's container certainly does not exist. Its host link
// ends with its namespace, so a container with the link exists. The link alone can be
// deleted, so without it the namespace counts. In doubt the attachment is alive.
func (c *Census) Dead(a *store.Attachment) bool {
	if a.HostLink == "" {
		return c.NetnsGone(a.Netns)
	}
	return c.LinkMissing(a) && !netnsLives(a.Netns)
}

// LinkMissing reports whether an attachment's host link is absent, or another link has
// its name.
func (c *Census) LinkMissing(a *store.Attachment) bool {
	if a.HostLink == "" {
		return false
	}
	l, ok := c.links[a.HostLink]
	return !ok || !isOurs(l, a.Key)
}

// netnsLives reports whether the recorded namespace exists at its path. After an
// error other than absence it may. From another mount namespace the path may seem
// missing; a container without both link and path is dead there too.
func netnsLives(n store.Netns) bool {
	if n.Path == "" || n.Inode == 0 {
		return false
	}
	var now unix.Stat_t
	if err := unix.Stat(n.Path, &now); err != nil {
		return !IsAbsent(err)
	}
	return now.Ino == n.Inode && now.Dev == n.Dev
}

// isOurs reports whether a link has the attachment's label.
func isOurs(l netops.LinkInfo, key store.Key) bool {
	label := Label(key)
	if IsLabel(key.ContainerID) {
		label = key.ContainerID // a rebuilt record of an unknown owner
	}
	return strings.HasPrefix(l.Alias, label)
}

// IsNetnsGone is NetnsGone for one namespace, without a census.
func IsNetnsGone(n store.Netns) bool { return (&Census{mount: MountNamespace()}).NetnsGone(n) }

// NetnsGone reports whether a recorded namespace certainly does not exist: in the mount
// namespace that recorded it, its path is absent, not a namespace, or another namespace.
// In another mount namespace with the same directory, its path is absent. A file that is
// not a namespace there may be one whose mount is not visible.
func (c *Census) NetnsGone(n store.Netns) bool {
	if n.Path == "" || n.Mount == 0 {
		return false
	}
	if n.Mount != c.mount {
		var st unix.Stat_t
		err := unix.Stat(filepath.Dir(n.Path), &st)
		return err == nil && n.DirInode != 0 && st.Ino == n.DirInode && st.Dev == n.DirDev && IsAbsent(unix.Lstat(n.Path, &st))
	}
	var st unix.Statfs_t
	err := unix.Statfs(n.Path, &st)
	if IsAbsent(err) {
		return true
	}
	if err != nil {
		return false
	}
	if st.Type != unix.NSFS_MAGIC && st.Type != unix.PROC_SUPER_MAGIC {
		return true
	}
	if n.Inode == 0 {
		return false
	}
	var now unix.Stat_t
	if err := unix.Stat(n.Path, &now); err != nil {
		return false
	}
	return now.Ino != n.Inode || now.Dev != n.Dev
}

// NetnsGone is [Census.NetnsGone] without a Census. It reads no links.
func NetnsGone(n store.Netns) bool {
	return (&Census{mount: MountNamespace()}).NetnsGone(n)
}

// Replaced reports whether a done attachment belongs to an earlier container of the same
// ID: its host link does not exist, and its namespace is another one, or unknown as in a
// rebuilt record.
func Replaced(ctx context.Context, h *roles.Host, a *store.Attachment, now *netops.Namespace) (bool, error) {
	if IsRecorded(now, a.Netns) {
		return false, nil
	}
	if a.HostLink == "" {
		return a.Netns.Inode != 0, nil
	}
	l, err := h.Net.Link(ctx, nil, a.HostLink)
	if errors.Is(err, netops.ErrNotExist) {
		return true, nil
	}
	return err == nil && !isOurs(l, a.Key), err
}

// IsAbsent reports whether an error means that a path does not exist.
func IsAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}
