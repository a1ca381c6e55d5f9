package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/store"
)

// TestRoundTrip: an import and an export do not change the reference's files. With TestResult this
// is the reference's scenario "dual + routes + resolv.conf with exact file bytes".
func TestRoundTrip(t *testing.T) {
	b := newBed(t)
	files := map[string]string{
		"10.1.2.2":           "0a1b2c\r\neth0",
		"10.1.2.3":           "0a1b2c\r\neth1",
		"10.1.2.9":           "legacy",
		"2001:db8:1::2":      "0a1b2c\r\neth0",
		"2001:db8:1::ff:1":   "ffee\r\nnet1",
		"last_reserved_ip.0": "10.1.2.9",
		"last_reserved_ip.1": "2001:db8:1::ff:1",
	}
	dir := b.writeDir(t, "net", files)
	a := b.handlerFor(t, `{"mirror": false, "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]]}`)
	b.del(t, a, request1("nobody"))
	out := filepath.Join(b.dir, "a", "new", "place")
	report, err := leasefiles.Export(context.Background(), b.Host, out)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Networks) != 1 || report.Networks[0].Written != 5 {
		t.Errorf("report %+v", report)
	}
	want := map[string]string{"lock": "-rw------- "}
	for name, content := range files {
		want[name] = "-rw------- " + content
	}
	if diff := cmp.Diff(want, readDir(t, filepath.Join(out, "net"))); diff != "" {
		t.Error(diff)
	}
	report, err = leasefiles.Export(context.Background(), b.Host, b.dataDir())
	if err != nil || report.Networks[0].Kept != 5 || report.Networks[0].Written != 0 {
		t.Errorf("over itself: %+v, %v", report, err)
	}
	want["lock"] = "-rwxr-x--- "
	if diff := cmp.Diff(want, readDir(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// reserveExternally writes another program's reservation with a time one second later, because the
// kernel's time of files has a resolution of milliseconds.
func reserveExternally(t *testing.T, path string) {
	t.Helper()
	later := time.Now().Add(time.Second)
	if err := errors.Join(os.WriteFile(path, []byte("foreign\r\neth0"), 0o600), os.Chtimes(path, later, later)); err != nil {
		t.Fatal(err)
	}
}

// TestExportForRollBack: the export writes the changes since the import, and keeps the files that
// another program wrote since then.
func TestExportForRollBack(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", map[string]string{
		"10.1.2.2": "gone\r\neth0", "10.1.2.3": "stays\r\neth0", "10.1.2.4": "replaced\r\neth0", "10.1.2.5": "", "note": "mine",
	})
	a := b.handlerFor(t, `{"mirror": false, "subnet": "10.1.2.0/24"}`)
	b.del(t, a, request1("gone"))
	b.del(t, a, request1("replaced"))
	b.add(t, a, withArgs(t, request1("new"), "IP=10.1.2.4"))
	b.add(t, a, request1("newer")) // .5, whose file is empty
	reserveExternally(t, filepath.Join(dir, "10.1.2.77"))
	report, err := leasefiles.Export(context.Background(), b.Host, b.dataDir())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"lock": "-rwxr-x--- ", "note": "-rw------- mine", "last_reserved_ip.0": "-rw------- 10.1.2.5",
		"10.1.2.3": "-rw------- stays\r\neth0", "10.1.2.4": "-rw------- new\r\neth0", "10.1.2.5": "-rw------- newer\r\neth0",
		"10.1.2.77": "-rw------- foreign\r\neth0",
	}
	if diff := cmp.Diff(want, readDir(t, dir)); diff != "" {
		t.Error(diff)
	}
	n := report.Networks[0]
	if len(n.Removed) != 0 || fmt.Sprint(n.Foreign) != "[10.1.2.77]" || n.Written != 2 || n.Kept != 1 {
		t.Errorf("report %+v", n)
	}
	reserveExternally(t, filepath.Join(dir, "10.1.2.4"))
	if _, err = leasefiles.Export(context.Background(), b.Host, b.dataDir()); !errors.Is(err, leasefiles.ErrDirectory) || !strings.Contains(err.Error(), "10.1.2.4") {
		t.Errorf("over another program's file: %v", err)
	}
	if got := readDir(t, dir)["10.1.2.4"]; got != "-rw------- foreign\r\neth0" {
		t.Errorf("another program's file became %q", got)
	}
}

func TestExportIntoHostilePlaces(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"mirror": false, "subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("one"))
	victim := filepath.Join(b.dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := b.writeDir(t, "net", nil)
	if err := os.Symlink(victim, filepath.Join(dir, "10.1.2.2")); err != nil {
		t.Fatal(err)
	}
	if _, err := leasefiles.Export(context.Background(), b.Host, b.dataDir()); !errors.Is(err, leasefiles.ErrDirectory) {
		t.Errorf("a link as file: %v", err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Symlink(b.dir, dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := leasefiles.Export(context.Background(), b.Host, b.dataDir()); !errors.Is(err, leasefiles.ErrDirectory) {
		t.Errorf("a link as directory: %v", err)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
		t.Errorf("victim: %q, %v", got, err)
	}
}

// TestExportLeavesCloudsOut: the addresses of a cloud are not exported, because the reference has no
// range for them.
func TestExportLeavesCloudsOut(t *testing.T) {
	b := newBed(t)
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		pool, err := tx.Pool(store.PoolID{Network: "net", DataDir: store.CloudDataDir})
		if err != nil {
			return err
		}
		return pool.Reserve(store.Lease{Address: ip("10.240.0.36"), Owner: request1("one").Key()})
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := leasefiles.Export(context.Background(), b.Host, filepath.Join(b.dir, "out"))
	if err != nil || len(report.Networks) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
