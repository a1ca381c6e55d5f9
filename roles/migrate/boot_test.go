package migrate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLifetime: which files are of this boot, whose clock was stepped or was not.
func TestLifetime(t *testing.T) {
	at := func(hour, minute int) time.Time { return time.Date(2026, 11, 22, hour, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		name        string
		start, then time.Time
		length      time.Duration
		has, hasNot []time.Time
	}{
		{"nothing tells the clock of then", at(8, 0), time.Time{}, time.Hour, []time.Time{at(8, 0), at(9, 0)}, []time.Time{at(7, 59), {}}},
		{"not stepped", at(8, 0), at(8, 0), time.Hour, []time.Time{at(8, 0), at(9, 0)}, []time.Time{at(7, 59)}},
		// The machine was off from 6 to 8, and its clock too: it was set half an hour later.
		{"stepped forward", at(8, 0), at(6, 0), time.Hour, []time.Time{at(6, 0), at(6, 30), at(8, 30), at(9, 0)}, []time.Time{at(5, 59), at(7, 1), at(7, 59)}},
		{"stepped back", at(8, 0), at(9, 0), 30 * time.Minute, []time.Time{at(8, 0), at(8, 30), at(9, 30)}, []time.Time{at(7, 59)}},
		{"no clock at all", at(8, 0), time.Unix(0, 0), time.Hour, []time.Time{time.Unix(60, 0), at(8, 30)}, []time.Time{at(7, 0), at(0, 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lifetime{c.start, c.then, c.length}
			for _, f := range c.has {
				if !l.has(f) {
					t.Errorf("a file of %s is told to be of an earlier boot", f)
				}
			}
			for _, f := range c.hasNot {
				if l.has(f) {
					t.Errorf("a file of %s is told to be of this boot", f)
				}
			}
		})
	}
}

// TestMadeTime: a file system in memory tells when it was made, a disk's directory
// nothing that would be of use.
func TestMadeTime(t *testing.T) {
	dir := t.TempDir()
	if unmade := madeTime(filepath.Join(dir, "absent")); !unmade.IsZero() {
		t.Errorf("what is absent was made at %s", unmade)
	}
	before := time.Now().Add(-clockTick)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(dir, later, later); err != nil {
		t.Fatal(err)
	}
	if made := madeTime(dir); made.Before(before) || made.After(time.Now()) {
		t.Errorf("made at %s, after %s", made, before)
	}
	if made := madeTime("/proc"); !made.IsZero() {
		t.Errorf("/proc was made at %s", made)
	}
}
