package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/store"
)

// TestClockSetBack: the clock is set back between the export and the reference's changes. Its new
// files have times before those of the export.
func TestClockSetBack(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", nil)
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.Now = func() time.Time { return time.Now().Add(time.Hour) }
	b.add(t, a, request1("one"))
	b.add(t, a, request1("two"))
	if _, err := leasefiles.Export(context.Background(), b.Host, b.dataDir()); err != nil {
		t.Fatal(err)
	}
	late := time.Now().Add(time.Hour)
	for _, name := range []string{"10.1.2.2", "10.1.2.3"} {
		if err := os.Chtimes(filepath.Join(dir, name), late, late); err != nil {
			t.Fatal(err)
		}
	}
	id := store.PoolID{DataDir: b.dataDir(), Network: "net"}
	err := b.Store.KeepUpdate(context.Background(), func(keep *store.KeepTx) error {
		kind, name := "host-local-import", id.DataDir+"\x00"+id.Network
		raw, _, err := keep.Marked(kind, name)
		if err != nil {
			return err
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		start, err := time.Parse(time.RFC3339Nano, m["start"].(string))
		m["start"], m["newest"], m["recent"] = start.Add(time.Hour), late, []string{"10.1.2.2", "10.1.2.3"}
		changed, marshalErr := json.Marshal(m)
		return errors.Join(err, marshalErr, keep.Mark(kind, name, changed))
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Now = time.Now
	if err := os.Remove(filepath.Join(dir, "10.1.2.3")); err != nil {
		t.Fatal(err)
	}
	b.writeFile(t, dir, "10.1.2.3", "three\r\neth0")
	b.writeFile(t, dir, "10.1.2.4", "four\r\neth0")
	expect(t, b.add(t, a, request1("five")), "10.1.2.5")
	expect(t, b.leases(t), "10.1.2.2 one eth0", "10.1.2.3 three eth0", "10.1.2.4 four eth0", "10.1.2.5 five eth0")
}
