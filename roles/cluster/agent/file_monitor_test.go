package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// TestFileMonitor: every change of a file and its directory is reported.
func TestFileMonitor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path, other := filepath.Join(dir, "f"), filepath.Join(dir, "other")
	write := func(path string) func() error {
		return func() error { return os.WriteFile(path, []byte("x"), 0o600) }
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := openFileMonitor(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	m.addWatches()
	for _, change := range []struct {
		name string
		do   func() error
	}{
		{"written", write(path)},
		{"replaced", func() error { return errors.Join(write(other)(), os.Rename(other, path)) }},
		{"moved away", func() error { return os.Rename(path, other) }},
		{"moved back", func() error { return os.Rename(other, path) }},
		{"removed", func() error { return os.Remove(path) }},
		{"removed with its directory", func() error { return os.Remove(dir) }},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		await.Next(t, m.changes(), change.name)
	}
}

// FuzzFileMonitor: no inotify event leads to a panic.
func FuzzFileMonitor(f *testing.F) {
	m := &fileMonitor{names: []string{"overlay.json"}}
	event := append([]byte{1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0}, "overlay.json\x00\x00\x00\x00"...)
	if !m.isRelevant(event) || m.isRelevant(append(event[:16:16], "other.json\x00\x00\x00\x00\x00\x00"...)) {
		f.Error("names are not told apart")
	}
	f.Add(event)
	f.Fuzz(func(_ *testing.T, b []byte) { m.isRelevant(b) })
}
