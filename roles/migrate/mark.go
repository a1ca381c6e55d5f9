package migrate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// markImport is the kind of keep.db's marks for directories that were taken over.
const markImport = "host-local-import"

// importMark is the value of a mark.
type importMark struct {
	// Time is when the directory was read.
	Time   time.Time `json:"time"`
	Leases int       `json:"leases"`
	// Node identifies the node.db that got the leases. A new one after a loss has none of
	// them, because other programs' interfaces cannot be rebuilt from the kernel, so the
	// directory is read again. Leases that were released in between come back, which
	// wastes addresses; without them addresses could be assigned twice.
	Node string `json:"node"`
	// Dir is the directory's own time then. When it is another now, a file was
	// made since, or removed.
	Dir time.Time `json:"dir,omitzero"`
	// Start is when the machine started, by the clock of then: where it is later than
	// by the clock of now, the clock was set back since.
	Start time.Time `json:"start,omitzero"`
	// Newest is the latest time of a file then, and Recent are the files of that
	// time: others of it, and later ones, were made since.
	Newest time.Time    `json:"newest,omitzero"`
	Recent []netip.Addr `json:"recent,omitempty"`
	// Exported is when all leases were last written there. Who has the address
	// of one that was made before, in a file made since, has it by right.
	Exported time.Time `json:"exported,omitzero"`
}

// clockTick is above the granularity of file times: 10 ms where HZ is 100.
const clockTick = 20 * time.Millisecond

// outdated reports whether the directory may have other files than when it was
// read. One that was changed just then may have been changed again in the same tick.
func (m importMark) outdated(dir time.Time) bool {
	late := m.Time.Sub(m.Dir)
	return !dir.Equal(m.Dir) || late >= 0 && late < clockTick
}

// isNew reports whether a file was made after the directory was read. If the clock was
// set back since, older files may count as new: reading a file again wastes an address
// at most.
func (m importMark) isNew(e entry, setBack time.Duration) bool {
	if setBack == 0 && e.modified.Equal(m.Newest) {
		return !slices.Contains(m.Recent, e.addr)
	}
	return e.modified.After(m.Newest.Add(-setBack))
}

// setBack is by how much the clock was set back since, at most: the kernel gives the time
// of the start in whole seconds.
func (m importMark) setBack(boot lifetime) time.Duration {
	back := m.Start.Sub(boot.start)
	if m.Start.IsZero() || back <= time.Second {
		return 0
	}
	return back + time.Second
}

// note describes what was read for the next time.
func (m *importMark) note(now time.Time, boot lifetime, dir time.Time, found *foundFiles) {
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
