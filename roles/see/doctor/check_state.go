package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// unreadable is the check of what the others could not read.
const unreadable = "unreadable"

// stateChecks look at the state files and the runtimes' caches.
func stateChecks() []Check {
	return []Check{
		{ID: unreadable, Title: "a part of the node could not be read", Reads: "the errors of all readers", Severity: Warning, find: func(f *Facts, add add) {
			for _, u := range f.Unread {
				add(u.What, u.Err.Error(), "correct what the error names, and examine the node again")
			}
		}},
		{ID: "state-locked", Title: "a process holds the lock of a state file", Reads: "node.db, keep.db", Severity: Error, find: func(f *Facts, add add) {
			eachFile(f, func(name string, err error) {
				if errors.Is(err, store.ErrBusy) {
					// The process that err names may have ended: the file with its number is a note.
					path := map[string]string{"node.db": f.State.RunDir + "/*/node.db", "keep.db": f.State.StateDir + "/keep.db"}[name]
					add(name, err.Error(), "fuser -v "+path)
				}
			})
		}},
		{ID: "state-damaged", Title: "a state file is damaged", Reads: "all pages and records of node.db and keep.db", Severity: Error, find: func(f *Facts, add add) {
			eachFile(f, func(name string, err error) {
				if errors.Is(err, store.ErrDamaged) {
					add(name, err.Error(), "cnibox state repair")
				}
			})
		}},
		{ID: "state-newer", Title: "a newer version wrote a state file", Reads: "node.db, keep.db", Severity: Error, find: func(f *Facts, add add) {
			eachFile(f, func(name string, err error) {
				if errors.Is(err, store.ErrSchema) {
					add(name, err.Error(), "install the newer version again")
				}
			})
		}},
		{ID: "state-mode", Title: "a state file has a wrong owner or mode", Reads: "node.db, keep.db and their directories", Severity: Error, find: func(f *Facts, add add) {
			for _, m := range f.State.Modes {
				add(m.Path, m.Fault, m.Fix)
			}
		}},
		{ID: "state-lost", Title: "node.db was removed or replaced: interfaces have no record", Reads: "node.db, the labels of interfaces", Severity: Error, find: func(f *Facts, add add) {
			if f.State.Dump == nil || len(f.State.Dump.Attachments) > 0 {
				return
			}
			if labelled := f.unrecorded(); len(labelled) > 0 {
				add("node.db", fmt.Sprintf("no record, and %d interfaces of pods: %s", len(labelled), few(labelled)), "cnibox state repair --force")
			}
		}},
		{ID: "disk", Title: "a file system of the state is full or read-only", Reads: "the file systems of /run/cnibox and /var/lib/cnibox", Severity: Error, find: func(f *Facts, add add) {
			for dir, err := range f.DirErrors {
				switch {
				case err == nil:
				case strings.Contains(err.Error(), "read-only"):
					add(dir, err.Error(), `mount -o remount,rw "$(findmnt -no TARGET -T `+dir+`)"`)
				default:
					add(dir, err.Error(), "df -h "+dir)
				}
			}
		}},
		{ID: "cache-damaged", Title: "a runtime's cached result cannot be read", Reads: "/var/lib/cni/results", Severity: Warning, find: func(f *Facts, add add) {
			for _, path := range f.Damaged {
				add(path, "is no cached result of libcni", "rm "+path)
			}
		}},
		{ID: "cache-stale", Title: "a runtime's cached result is of a namespace that no longer exists", Reads: "/var/lib/cni/results", Severity: Info, find: func(f *Facts, add add) {
			recorded := map[store.Key]bool{}
			for _, a := range f.attachments() {
				recorded[a.Key] = true
			}
			for path, c := range f.Caches {
				if c.Netns != "" && !recorded[c.Key()] && f.isGone(c.Netns) {
					add(path, fmt.Sprintf("%s of container %s on %s: %s does not exist", c.IfName, c.ContainerID, c.Network, c.Netns), "rm "+path)
				}
			}
		}},
	}
}

// eachFile calls each for the state files with an error.
func eachFile(f *Facts, each func(name string, err error)) {
	if f.State.Node != nil {
		each("node.db", f.State.Node)
	}
	if f.State.Keep != nil {
		each("keep.db", f.State.Keep)
	}
}

// unrecorded returns the interfaces with a label of an attachment that has no record.
func (f *Facts) unrecorded() (names []string) {
	for _, l := range recovery.OrphanLinks(f.links(), recovery.Known(f.attachments())) {
		names = append(names, l.Name)
	}
	return names
}

// isOwn reports whether a link of the host has one of our labels.
func (f *Facts) isOwn(l *netops.LinkInfo) bool { return attachment.Labelled(*l) }

// few returns at most three names, and how many others there are.
func few(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
