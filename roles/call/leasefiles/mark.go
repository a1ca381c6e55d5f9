package leasefiles

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// markImport is the kind of keep.db's marks for imported directories.
const markImport = "host-local-import"

// importMark is the content of a mark.
type importMark struct {
	// Time is the time at which the directory was read.
	Time   time.Time `json:"time"`
	Leases int       `json:"leases"`
	// Node is the ID of the node.db that got the leases. A node.db that was rebuilt after
	// a loss has none of them, because third-party interfaces cannot be rebuilt from the
	// kernel, so the directory is read again. This also restores leases that were
	// released in between and wastes their addresses. Without it addresses could be
	// assigned twice.
	Node string `json:"node"`
	// Dir is the directory's modification time at the import. If it differs now, a file
	// was made or removed since.
	Dir time.Time `json:"dir,omitzero"`
	// Start is the machine's start by the clock of the import. If it is later than by the
	// present clock, the clock was set back since.
	Start time.Time `json:"start,omitzero"`
	// Newest is the latest modification time of a file at the import, and Recent are the
	// files with this time. Files with a later time, and other files with this time, were
	// made since.
	Newest time.Time    `json:"newest,omitzero"`
	Recent []netip.Addr `json:"recent,omitempty"`
	// Exported is the time at which all leases were last exported to the directory. The
	// owner in a file that was made after it replaces the owner of a lease that was made
	// before it.
	Exported time.Time `json:"exported,omitzero"`
}

// clockTick is longer than the granularity of file times, which is 10 ms if HZ is 100.
const clockTick = 20 * time.Millisecond

// outdated reports whether the directory's files may have changed since it was read. A
// directory that was changed while it was read may have been changed again in the same
// clock tick.
func (m importMark) outdated(dir time.Time) bool {
	late := m.Time.Sub(m.Dir)
	return !dir.Equal(m.Dir) || late >= 0 && late < clockTick
}

// isNew reports whether a file was made after the directory was read. If the clock was
// set back since, older files may count as new: reading a file again wastes an address
// at most.
func (m importMark) isNew(e *entry, setBack time.Duration) bool {
	if setBack == 0 && e.modified.Equal(m.Newest) {
		return !slices.Contains(m.Recent, e.addr)
	}
	return e.modified.After(m.Newest.Add(-setBack))
}

// setBack returns the longest duration by which the clock may have been set back since.
// It is inexact, because the kernel reports the start in whole seconds.
func (m importMark) setBack(boot bootTimes) time.Duration {
	back := m.Start.Sub(boot.start)
	if m.Start.IsZero() || back <= time.Second {
		return 0
	}
	return back + time.Second
}

// note sets the fields that describe the files that were read.
func (m *importMark) note(now time.Time, boot bootTimes, dir time.Time, found *foundFiles) {
	m.Time, m.Start, m.Dir, m.Newest, m.Recent = now, boot.start, dir, time.Time{}, nil
	for _, e := range found.entries {
		if e.modified.After(m.Newest) {
			m.Newest, m.Recent = e.modified, nil
		}
		if e.modified.Equal(m.Newest) {
			m.Recent = append(m.Recent, e.addr)
		}
	}
}

// readMark reads a pool's mark, or the zero mark if there is none.
func readMark(keep *store.KeepTx, id store.PoolID) (importMark, error) {
	var m importMark
	raw, ok, err := keep.Marked(markImport, markName(id))
	if err != nil || !ok {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("import mark of %q: %w: %w", directoryPath(id), roles.ErrDecode, err)
	}
	return m, nil
}

// write stores a pool's mark.
func (m importMark) write(keep *store.KeepTx, id store.PoolID) error {
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return keep.Mark(markImport, markName(id), value)
}

func markName(id store.PoolID) string { return id.DataDir + "\x00" + id.Network }
