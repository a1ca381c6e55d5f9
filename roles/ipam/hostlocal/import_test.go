package hostlocal

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/store"
)

// writeDir makes a reference directory with its lock file.
func (b *bed) writeDir(tb testing.TB, network string, files map[string]string) string {
	tb.Helper()
	dir := filepath.Join(b.dataDir(), network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o750); err != nil {
		tb.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// readDir returns a directory's files with their content and mode.
func readDir(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			tb.Fatal(err)
		}
		content := ""
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				tb.Fatal(err)
			}
			content = string(b)
		}
		out[e.Name()] = fi.Mode().String() + " " + content
	}
	return out
}

func mkfifo(tb testing.TB, path string) {
	tb.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// files returns the directory's files with their content.
func (b *bed) files(tb testing.TB) []string {
	tb.Helper()
	var out []string
	for name, content := range readDir(tb, filepath.Join(b.dataDir(), "net")) {
		if strings.HasPrefix(name, "last_reserved_ip.") {
			continue
		}
		_, content, _ = strings.Cut(content, " ")
		out = append(out, name+" "+strings.ReplaceAll(content, "\r\n", " "))
	}
	slices.Sort(out)
	return out
}

// reboot begins another boot. All files are older.
func (b *bed) reboot(tb testing.TB) {
	tb.Helper()
	for name := range readDir(tb, filepath.Join(b.dataDir(), "net")) {
		age(tb, filepath.Join(b.dataDir(), "net", name))
	}
	b.Store = store.New(storeOptions(tb, b.dir, "0b5f6c55-6f2f-4a0e-8d0e-0c1d2e3f4a5b"))
}

// age gives a file a time from before this boot.
func age(tb testing.TB, path string) {
	tb.Helper()
	to := time.Unix(1e9, 0)
	if err := os.Chtimes(path, to, to); err != nil {
		tb.Fatal(err)
	}
}

func TestImport(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", map[string]string{
		"10.1.2.2":           "one\r\neth0",
		"10.1.2.3":           "one\r\neth1",
		"10.1.2.4":           "two\neth0", // September 2018
		"10.1.2.5":           "three",     // before that
		"2001:db8::2":        "one\r\neth0",
		"2001_db8__3":        "two\r\neth0", // Windows
		"10.1.2.6":           "",
		"10.1.2.7":           "stale\r\neth0",
		"10.1.2.8":           strings.Repeat("x", 10_000) + "\r\neth0",
		"10.1.2.9":           strings.Repeat("x", 16<<10) + "\r\neth0",
		"10.1.2.10":          "\xff\xfe\r\neth0",
		"10.1.2.11":          "a\x00b\r\neth0",
		"10.1.2.12":          "an essay\r\neth0",
		"10.1.2.13":          "four\r\n../../etc",
		"10.1.2.14":          "  \n ",
		"notes.txt":          "remember the milk",
		"last_reserved_ip.0": "10.1.2.8",
		"last_reserved_ip.1": "2001:db8::3",
		"last_reserved_ip.x": "10.1.2.8",
		"last_reserved_ip.2": "junk",
	})
	age(t, filepath.Join(dir, "10.1.2.7"))
	mkfifo(t, filepath.Join(dir, "10.1.2.15"))
	if err := os.Mkdir(filepath.Join(dir, "10.1.2.16"), 0o700); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(b.dir, "secret")
	if err := os.WriteFile(secret, []byte("one\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "10.1.2.17")); err != nil {
		t.Fatal(err)
	}
	before := readDir(t, dir)

	report, err := leasefiles.Import(context.Background(), b.Host, b.dataDir()+"/", "net", false)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t),
		"10.1.2.2 one eth0", "10.1.2.3 one eth1", "10.1.2.4 two eth0", "10.1.2.5 three",
		"10.1.2.8 "+strings.Repeat("x", 10_000)+" eth0", "2001:db8::2 one eth0", "2001:db8::3 two eth0")
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Name+": "+s.Reason)
	}
	slices.Sort(skipped)
	expect(t, skipped,
		"10.1.2.10: not UTF-8",
		"10.1.2.11: contains no container ID and interface name",
		"10.1.2.12: contains no container ID and interface name",
		"10.1.2.13: contains no container ID and interface name",
		"10.1.2.14: empty: the address counts as free",
		"10.1.2.15: not a regular file",
		"10.1.2.16: not a regular file",
		"10.1.2.17: not a regular file",
		"10.1.2.6: empty: the address counts as free",
		"10.1.2.9: longer than 16384 bytes",
		`last_reserved_ip.2: "junk" is not an IP address`,
		"last_reserved_ip.x: its name is not an address",
		"notes.txt: its name is not an address",
	)
	if diff := cmp.Diff([]string{"10.1.2.7"}, stringsOf(report.Stale)); diff != "" {
		t.Error(diff)
	}
	if len(report.Leases) != 7 || !report.Leases[0].Imported || report.Already || report.Dir != dir {
		t.Errorf("report %+v", report)
	}
	if diff := cmp.Diff(before, readDir(t, dir)); diff != "" {
		t.Errorf("the directory was written: %s", diff)
	}
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]}`)
	expect(t, b.add(t, a, request1("new")), "10.1.2.14", "2001:db8::9") // after the cursors and the files
}

func stringsOf(in []netip.Addr) []string {
	var out []string
	for _, a := range in {
		out = append(out, a.String())
	}
	return out
}

func TestImportOnFirstUse(t *testing.T) {
	for verb, use := range map[string]func(a *handler, b *bed) error{
		"ADD": func(a *handler, b *bed) error {
			_, err := a.Add(context.Background(), b.Host, request1("new"))
			return err
		},
		"DEL":   func(a *handler, b *bed) error { return a.Del(context.Background(), b.Host, request1("one")) },
		"CHECK": func(a *handler, b *bed) error { return a.Check(context.Background(), b.Host, checkRequest("one")) },
		"GC": func(a *handler, b *bed) error {
			req := request1("")
			req.Valid = []roles.AttachmentID{{ContainerID: "one", IfName: "eth0"}}
			return a.GC(context.Background(), b.Host, req)
		},
	} {
		t.Run(verb, func(t *testing.T) {
			b := newBed(t)
			b.writeDir(t, "net", map[string]string{"10.1.2.2": "one\r\neth0", "10.1.2.3": "two\r\neth0", "10.1.2.4": ""})
			a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
			if err := use(a, b); err != nil {
				t.Fatal(err)
			}
			want := map[string][]string{
				"ADD":   {"10.1.2.2 one eth0", "10.1.2.3 two eth0", "10.1.2.4 new eth0"},
				"DEL":   nil, // it removes the file
				"CHECK": {"10.1.2.2 one eth0", "10.1.2.3 two eth0"},
				"GC":    {"10.1.2.2 one eth0"},
			}
			expect(t, b.leases(t), want[verb]...)
			if log := b.log.String(); verb != "DEL" && !strings.Contains(log, "file=10.1.2.4 reason=\"empty") || verb != "DEL" && !strings.Contains(log, "leases=2 stale=0 skipped=1") {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// TestImportOnce: an address that was released since the import is not leased again, and files that
// the reference has written since then are imported, too.
func TestImportOnce(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", map[string]string{"10.1.2.2": "one\r\neth0"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.del(t, a, request1("one"))
	b.writeFile(t, dir, "10.1.2.3", "late\r\neth0")
	b.add(t, a, request1("new"))
	b.add(t, a, request1("newer"))
	want := []string{"10.1.2.2 new eth0", "10.1.2.3 late eth0", "10.1.2.4 newer eth0"}
	expect(t, b.leases(t), want...)
	report, err := leasefiles.Import(context.Background(), b.Host, b.dataDir(), "net", false)
	if err != nil || !report.Already || len(report.Leases) > 0 {
		t.Errorf("again: %+v, %v", report, err)
	}
	report, err = leasefiles.Import(context.Background(), b.Host, b.dataDir(), "net", true)
	if err != nil || len(report.Leases) != 0 || len(report.Skipped) != 0 {
		t.Errorf("forced: %+v, %v", report, err)
	}
	expect(t, b.leases(t), want...)
}

func (b *bed) writeFile(tb testing.TB, dir, name, content string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// TestThereAndBack rolls back to the reference and forward again within one boot. No address that
// the reference has allocated is allocated again, even if another container had it before.
func TestThereAndBack(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", map[string]string{"10.1.2.2": "one\r\neth0"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("two"))
	b.add(t, a, request1("three"))
	if _, err := leasefiles.Export(context.Background(), b.Host, b.dataDir()); err != nil {
		t.Fatal(err)
	}
	// The reference releases .3 and gives it to another container, and .5 to a new one. Then it gives
	// .2, its own lease from before the import, to a third.
	if err := errors.Join(os.Remove(filepath.Join(dir, "10.1.2.3")), os.Remove(filepath.Join(dir, "10.1.2.2"))); err != nil {
		t.Fatal(err)
	}
	b.writeFile(t, dir, "10.1.2.3", "four\r\neth0")
	b.writeFile(t, dir, "10.1.2.5", "five\r\neth0")
	b.writeFile(t, dir, "10.1.2.2", "six\r\neth0")
	b.del(t, a, request1("two")) // no longer the holder of .3
	expect(t, b.add(t, a, request1("seven")), "10.1.2.6")
	expect(t, b.leases(t), "10.1.2.2 six eth0", "10.1.2.3 four eth0", "10.1.2.4 three eth0", "10.1.2.5 five eth0", "10.1.2.6 seven eth0")
	b.del(t, a, request1("five"))
	b.add(t, a, withArgs(t, request1("eight"), "IP=10.1.2.9"))
	expect(t, b.leases(t), "10.1.2.2 six eth0", "10.1.2.3 four eth0", "10.1.2.4 three eth0", "10.1.2.6 seven eth0", "10.1.2.9 eight eth0")
}

// TestImportAfterReboot: the record of the import survives a reboot, the leases do not, and the
// files are from before the boot. As with the reference, the next address follows last_reserved_ip.
func TestImportAfterReboot(t *testing.T) {
	b := newBed(t)
	b.writeDir(t, "net", map[string]string{"10.1.2.2": "one\r\neth0"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("two"))
	b.reboot(t)
	expect(t, b.add(t, a, request1("three")), "10.1.2.4")
	expect(t, b.files(t), "10.1.2.4 three eth0", "lock ")
	expect(t, b.leases(t), "10.1.2.4 three eth0")
}

// TestImportAfterLoss: node.db is lost while containers run. Containers without an interface of
// cnibox are known from their files only.
func TestImportAfterLoss(t *testing.T) {
	b := newBed(t)
	b.writeDir(t, "net", map[string]string{"10.1.2.2": "one\r\neth0"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("two"))
	if err := os.RemoveAll(filepath.Join(b.dir, "run")); err != nil {
		t.Fatal(err)
	}
	storeOptions(t, b.dir, "") // /run is there, empty
	for range 2 {
		b.add(t, a, request1("three"))
		expect(t, b.leases(t), "10.1.2.2 one eth0", "10.1.2.3 two eth0", "10.1.2.4 three eth0")
		b.del(t, a, request1("three"))
		b.add(t, a, withArgs(t, request1("x"), "IP=10.1.2.254"))
		b.del(t, a, request1("x"))
	}
	if n := strings.Count(b.log.String(), "imported host-local directory"); n != 2 {
		t.Errorf("%d imports", n)
	}
}
