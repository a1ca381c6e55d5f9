package leasefiles

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBootTimes: files of this boot are recognised, whether the clock was stepped or not.
func TestBootTimes(t *testing.T) {
	at := func(hour, minute int) time.Time { return time.Date(2026, 11, 22, hour, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		name        string
		start, then time.Time
		length      time.Duration
		has, hasNot []time.Time
	}{
		{"nothing tells the clock of then", at(8, 0), time.Time{}, time.Hour, []time.Time{at(8, 0), at(9, 0)}, []time.Time{at(7, 59), {}}},
		{"not stepped", at(8, 0), at(8, 0), time.Hour, []time.Time{at(8, 0), at(9, 0)}, []time.Time{at(7, 59)}},
		// The machine was off from 6 to 8, and its clock did not run. The clock was set
		// half an hour after the start.
		{"stepped forward", at(8, 0), at(6, 0), time.Hour, []time.Time{at(6, 0), at(6, 30), at(8, 30), at(9, 0)}, []time.Time{at(5, 59), at(7, 1), at(7, 59)}},
		{"stepped back", at(8, 0), at(9, 0), 30 * time.Minute, []time.Time{at(8, 0), at(8, 30), at(9, 30)}, []time.Time{at(7, 59)}},
		{"no clock at all", at(8, 0), time.Unix(0, 0), time.Hour, []time.Time{time.Unix(60, 0), at(8, 30)}, []time.Time{at(7, 0), at(0, 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := bootTimes{c.start, c.then, c.length}
			for _, f := range c.has {
				if !l.has(f) {
					t.Errorf("a file of %s is reported as of an earlier boot", f)
				}
			}
			for _, f := range c.hasNot {
				if l.has(f) {
					t.Errorf("a file of %s is reported as of this boot", f)
				}
			}
		})
	}
}

// TestCreationTime: a tmpfs has a creation time; another file system returns zero.
func TestCreationTime(t *testing.T) {
	dir := t.TempDir()
	if absent := creationTime(filepath.Join(dir, "absent")); !absent.IsZero() {
		t.Errorf("an absent directory was created at %s", absent)
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
	if made := creationTime(dir); made.Before(before) || made.After(time.Now()) {
		t.Errorf("made at %s, after %s", made, before)
	}
	if made := creationTime("/proc"); !made.IsZero() {
		t.Errorf("/proc was made at %s", made)
	}
}
