package dir

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/test/await"
)

func write(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func open(tb testing.TB, dir, name string) *Registry {
	tb.Helper()
	r, err := Open(Options{Dir: dir, Name: name})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func world(t *testing.T, conf string) *clustertest.World {
	dir := filepath.Join(t.TempDir(), "cluster")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, configFile), conf)
	file := func(name string) string { return filepath.Join(dir, nodesDir, name) }
	return &clustertest.World{
		Open: func(tb testing.TB, name string, owner *cluster.Owner) cluster.Registry {
			r := open(tb, dir, name)
			r.o.Owner, r.o.Rescan = owner, time.Hour // so that inotify alone notices changes
			return r
		},
		Writes: func(tb testing.TB) string {
			entries, err := os.ReadDir(filepath.Join(dir, nodesDir))
			if err != nil {
				tb.Fatal(err)
			}
			var b strings.Builder
			for _, e := range entries {
				is, err := stampOf(file(e.Name()), false)
				fmt.Fprintln(&b, e.Name(), is, err)
			}
			return b.String()
		},
		Alter: func(tb testing.TB, n cluster.Node) {
			b, err := json.Marshal(n)
			if err != nil {
				tb.Fatal(err)
			}
			write(tb, file(n.Name+suffix), string(b))
		},
		Remove: func(tb testing.TB, n cluster.Node) {
			if err := os.Remove(file(n.Name + suffix)); err != nil {
				tb.Fatal(err)
			}
		},
		Hostile: func(tb testing.TB) []string {
			good := `{"name":"%s","publicIP":"192.0.2.66","podCIDRs":["%s"],"backendType":"vxlan","backendData":{"VtepMAC":"02:00:00:00:00:66"}}`
			var names []string
			for name, content := range map[string]string{
				"empty": "", "half": `{"name":"half","publicIP":"192.0.2.`, "list": "[]", "binary": "\x00\xff\xfe", "large": strings.Repeat(" ", maxRecord+1),
				"deep":  strings.Repeat(`{"backendData":`, 20000),
				"other": fmt.Sprintf(good, "node-1", "10.244.66.0/24"), "everything": fmt.Sprintf(good, "everything", "0.0.0.0/0"),
				"outside": fmt.Sprintf(good, "outside", "198.51.100.0/24"), "whole": fmt.Sprintf(good, "whole", "10.244.0.0/16"),
				"hostbits": fmt.Sprintf(good, "hostbits", "10.244.66.1/24"), "nothing": `{}`, "null": "null", "sp ace": fmt.Sprintf(good, "sp ace", "10.244.67.0/24"),
				"longdata": `{"podCIDRs":["10.244.66.0/24"],"backendData":"` + strings.Repeat("x", 5000) + `"}`,
				"loopback": `{"podCIDRs":["10.244.66.0/24"],"publicIP":"127.0.0.1"}`,
			} {
				write(tb, file(name+suffix), content)
				names = append(names, name)
			}
			if err := errors.Join(os.Symlink("/etc/passwd", file(".x")), os.Rename(file(".x"), file("link"+suffix)),
				unix.Mkfifo(file(".y"), 0o644), os.Rename(file(".y"), file("fifo"+suffix)),
				os.Mkdir(file(".z"), 0o755), os.Rename(file(".z"), file("directory"+suffix))); err != nil {
				tb.Fatal(err)
			}
			return append(names, "link", "fifo", "directory")
		},
		Text: func(tb testing.TB, collection, name string, text []byte) {
			write(tb, filepath.Join(dir, collection, name+suffix), string(text))
		},
		Down: func(tb testing.TB) func() {
			if err := os.Rename(dir, dir+".away"); err != nil {
				tb.Fatal(err)
			}
			return func() {
				if err := os.Rename(dir+".away", dir); err != nil {
					tb.Fatal(err)
				}
			}
		},
	}
}

func TestRegistry(t *testing.T) { clustertest.Suite(t, world) }

// What a writer leaves that was killed before it renamed its file is removed, in both directories, and nothing else is.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`)
	r := open(t, dir, "node-1")
	pages := r.Pages()
	if _, err := pages.Write(t.Context(), "page", []byte("{}"), ""); err != nil {
		t.Fatal(err)
	}
	kept := []string{".hidden", ".notes.json.txt", ".12"}
	for _, d := range []string{nodesDir, rangesDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range append(kept, ".node-1.json.1234567890", ".gone.json.7") {
			write(t, filepath.Join(dir, d, name), "half")
		}
	}
	if _, err := r.Acquire(t.Context(), cluster.Node{PublicIP: netip.MustParseAddr("192.0.2.1"), BackendType: "vxlan", BackendData: json.RawMessage(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := pages.List(t.Context(), func(string, []byte, string) {}); err != nil {
		t.Fatal(err)
	}
	for d, file := range map[string]string{nodesDir: "node-1.json", rangesDir: "page.json"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		want := append([]string{file}, kept...)
		slices.Sort(want)
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%s has %q, want %q", d, names, want)
		}
	}
}

func TestOpen(t *testing.T) {
	for _, o := range []Options{{Dir: "relative", Name: "a"}, {Dir: "/x", Name: "../a"}, {Dir: "/x", Name: ""}, {Dir: "/x", Name: "a/b"}} {
		if _, err := Open(o); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// The form of a record in the article: without a VNI and without a name.
func TestArticle(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`)
	if err := os.Mkdir(filepath.Join(dir, nodesDir), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, nodesDir, "k8s-node1.json"), `{"publicIP":"172.17.8.102","podCIDRs":["10.244.1.0/24"],"backendType":"vxlan","backendData":{"VtepMAC":"8e:10:e8:7b:5c:2d"}}`)
	first(t, open(t, dir, "me"), func(u cluster.Update) bool {
		return u.Snapshot != nil && len(u.Snapshot.Faults) == 0 && len(u.Snapshot.Nodes) == 1 && u.Snapshot.Nodes[0].Name == "k8s-node1"
	})
}

// first watches until ok accepts an update.
func first(t *testing.T, r *Registry, ok func(cluster.Update) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	err := clustertest.Watch(ctx, r.Watch, func(u cluster.Update) {
		if ok(u) {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// Watch waits for the configuration. If it becomes invalid, that is reported, and the last valid one
// is used.
func TestConfigurationChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configFile)
	r := open(t, dir, "a")
	if _, err := r.Acquire(t.Context(), cluster.Node{}); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatalf("without a configuration: %v", err)
	}
	step := 0
	first(t, r, func(u cluster.Update) bool {
		switch {
		case step == 0 && u.Err != nil:
			write(t, path, `{"Network":"10.244.0.0/16","surprise":1}`)
			step++
		case step == 1 && u.Snapshot != nil:
			if u.Snapshot.Config.Network != netip.MustParsePrefix("10.244.0.0/16") {
				t.Errorf("%+v", u.Snapshot.Config)
			}
			write(t, path, `{"Network":`)
			step++
		case step == 2 && u.Snapshot != nil && u.Snapshot.Faults[configKey] != nil:
			if u.Snapshot.Config.Network != netip.MustParsePrefix("10.244.0.0/16") {
				t.Errorf("%+v", u.Snapshot.Config)
			}
			write(t, path, `{"Network":"10.245.0.0/16"}`)
			step++
		case step == 3 && u.Snapshot != nil && u.Snapshot.Config.Network == netip.MustParsePrefix("10.245.0.0/16"):
			if u.Snapshot.Faults[configKey] != nil {
				t.Error("the fault stays")
			}
			return true
		}
		return false
	})
	var warned []string
	r.o.Warn = func(w string) { warned = append(warned, w) }
	write(t, path, `{"Network":"10.244.0.0/16","surprise":1}`)
	first(t, r, func(u cluster.Update) bool { return u.Snapshot != nil })
	if len(warned) != 1 {
		t.Errorf("warned %q", warned)
	}
}

// A record is noticed at once, also if it is a hard link, a symbolic link, or not a regular file.
func TestNewRecords(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	whole := filepath.Join(dir, "whole")
	write(t, whole, `{"name":"b","publicIP":"192.0.2.2","podCIDRs":["10.244.2.0/24"],"backendType":"vxlan"}`)
	r := open(t, dir, "a")
	at := r.path("b")
	has := func(u cluster.Update) bool {
		return slices.ContainsFunc(u.Snapshot.Nodes, func(n *cluster.Node) bool { return n.Name == "b" })
	}
	steps := []struct {
		name string
		do   func() error
		ok   func(cluster.Update) bool
	}{
		{"linked", func() error { return os.Link(whole, at) }, has},
		{"gone", func() error { return os.Remove(at) }, func(u cluster.Update) bool { return !has(u) }},
		{"linked, and its other name removed", func() error {
			temp := filepath.Join(dir, nodesDir, "temp")
			b, err := os.ReadFile(whole)
			return errors.Join(err, os.WriteFile(temp, b, 0o600), os.Link(temp, at), os.Remove(temp))
		}, has},
		{"a FIFO", func() error { return errors.Join(os.Remove(at), unix.Mkfifo(at, 0o600)) }, func(u cluster.Update) bool { return u.Snapshot.Faults["b"] != nil }},
		// If both changes were read at one time, the second fault would replace the first, which
		// does not change the snapshot.
		{"the FIFO gone", func() error { return os.Remove(at) }, func(u cluster.Update) bool { return u.Snapshot.Faults["b"] == nil }},
		{"a directory", func() error { return os.Mkdir(at, 0o700) }, func(u cluster.Update) bool { return u.Snapshot.Faults["b"] != nil }},
		{"the configuration anew", func() error {
			path := filepath.Join(dir, configFile)
			next := filepath.Join(t.TempDir(), "next")
			write(t, next, `{"Network":"10.245.0.0/16"}`)
			return errors.Join(os.Remove(path), os.Link(next, path))
		}, func(u cluster.Update) bool { return u.Snapshot.Config.Network.String() == "10.245.0.0/16" }},
	}
	r.o.Rescan = time.Hour // so that no full comparison notices the change
	step := -1
	first(t, r, func(u cluster.Update) bool {
		if u.Snapshot == nil || step >= 0 && !steps[step].ok(u) {
			return false
		}
		if step++; step == len(steps) {
			return true
		}
		if err := steps[step].do(); err != nil {
			t.Fatalf("%s: %v", steps[step].name, err)
		}
		return false
	})
}

// A node gets its previous subnet again, unless another node has it.
func TestPrevious(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	previous := []netip.Prefix{netip.MustParsePrefix("10.244.200.0/24")}
	for _, name := range []string{"a", "b"} {
		r := open(t, dir, name)
		r.o.Owner = clustertest.NewMachine(name, previous...).Owner(t)
		if _, err := r.Acquire(t.Context(), cluster.Node{}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := open(t, dir, "a").read("a").node.PodCIDRs[0], open(t, dir, "b").read("b").node.PodCIDRs[0]
	if a != previous[0] || b == a {
		t.Errorf("a has %s, b has %s", a, b)
	}
}

// TestUnreadable: while the file system does not read the file of a node, no other node takes its subnet, nobody replaces or removes it, and
// its peers keep it.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`)
	const record = `{"publicIP":"192.0.2.%d","podCIDRs":["10.244.%[1]d.0/24"],"backendType":"vxlan","backendData":{"VtepMAC":"02:00:00:00:00:0%[1]d"}}`
	r := open(t, dir, "a")
	must(t, os.Mkdir(filepath.Join(dir, nodesDir), 0o755))
	write(t, r.path("b"), fmt.Sprintf(record, 2))
	machine := func(name string) *Registry {
		r := open(t, dir, name)
		r.o.Owner = clustertest.NewMachine(name, netip.MustParsePrefix("10.244.2.0/24")).Owner(t)
		return r
	}
	newcomer, namesake := machine("n"), machine("b")
	step := 0
	mount := func() error { return unix.Mount("/proc/self/mem", r.path("b"), "", unix.MS_BIND, "") } // its first byte is EIO
	unmount := func() error { return unix.Unmount(r.path("b"), 0) }
	t.Cleanup(func() { _ = unmount() })
	names := func(u cluster.Update) (all string) {
		for _, n := range u.Snapshot.Nodes {
			all += n.Name
		}
		return all
	}
	first(t, r, func(u cluster.Update) bool {
		if u.Snapshot == nil {
			return false
		}
		switch have := names(u); {
		case step == 0 && have == "b":
			must(t, mount())
			write(t, filepath.Join(dir, "next"), `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":2}}`)
			must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, configFile))) // all records are read again
		case step == 1 && u.Snapshot.Config.Backend.VNI == 2:
			if have != "b" {
				t.Error("an unreadable node is left out")
			}
			for what, err := range map[string]error{
				"a new node":              func() error { _, err := newcomer.Acquire(t.Context(), cluster.Node{}); return err }(),
				"a node of the same name": func() error { _, err := namesake.Acquire(t.Context(), cluster.Node{}); return err }(),
				"its removal":             namesake.Release(t.Context()),
			} {
				if !errors.Is(err, cluster.ErrUnavailable) {
					t.Errorf("%s: %v", what, err)
				}
			}
			must(t, unmount())
			write(t, r.path("b"), fmt.Sprintf(record, 4))
		case step == 2 && len(u.Snapshot.Nodes) > 0 && u.Snapshot.Nodes[0].PublicIP.String() == "192.0.2.4":
			return true
		default:
			return false
		}
		step++
		return false
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// If another process holds the lock for too long, Acquire fails.
func TestLockHeld(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	unlock, err := open(t, dir, "a").lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t, dir, "b").Acquire(ctx, cluster.Node{}); !errors.Is(err, cluster.ErrUnavailable) || !strings.Contains(err.Error(), "another process holds it") {
		t.Fatal(err)
	}
	unlock()
	if _, err := open(t, dir, "b").Acquire(t.Context(), cluster.Node{}); err != nil {
		t.Fatal(err)
	}
}

// While a goroutine of this process holds the lock, another one waits. It gives up when its context ends.
func TestLockTurn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	r := open(t, dir, "a")
	unlock, err := r.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.lock(ended); !errors.Is(err, cluster.ErrUnavailable) || !strings.Contains(err.Error(), "this process holds it") {
		t.Error(err)
	}
	got := make(chan error)
	go func() {
		_, err := r.lock(t.Context())
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("a", []byte(`{"name":"a","publicIP":"192.0.2.1","podCIDRs":["10.244.1.0/24"],"backendType":"vxlan","backendData":{"VtepMAC":"02:00:00:00:00:66"}}`))
	f.Add("..", []byte(`{"podCIDRs":[""],"publicIP":null}`))
	config, _, err := cluster.ParseSubnetConfig([]byte(`{"Network":"10.244.0.0/16"}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		rec := decode(name, b)
		if rec.err == nil && rec.node.CheckIn(config) == nil {
			if rec.node.Name != name || cluster.CheckName(name) != nil || !config.Contains(rec.node.PodCIDRs[0]) {
				t.Fatalf("%+v", rec.node)
			}
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 'a', '.', 'j', 's', 'o', 'n', 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := &notifier{index: map[int32]int{1: 0}}
		events, err := n.decode(b)
		if err == nil && len(events) > len(b)/unix.SizeofInotifyEvent {
			t.Fatal(len(events))
		}
	})
}

// Where flock does not reach the other machines, nothing is lost, and one of two nodes soon says so and stops. Here each node has a
// file for the lock of its own.
func TestLockDoesNotReach(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	for _, name := range []string{holderDir, nodesDir, "counts"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{holderDir, nodesDir, "counts", configFile} {
		if err := os.Symlink(filepath.Join(dir, name), filepath.Join(other, name)); err != nil {
			t.Fatal(err)
		}
	}
	var wrote [2]int
	var failed [2]error
	var both sync.WaitGroup
	for i, r := range []*Registry{open(t, dir, "a"), open(t, other, "b")} {
		both.Go(func() {
			for counts := r.Collection("counts"); failed[i] == nil; {
				text, version, err := counts.Read(t.Context(), "count")
				if err != nil {
					failed[i] = err
					return
				}
				n, _ := strconv.Atoi(string(text))
				if _, err = counts.Write(t.Context(), "count", []byte(strconv.Itoa(n+1)), version); err == nil {
					wrote[i]++
				} else if !errors.Is(err, cluster.ErrRaced) {
					failed[i] = err
				}
				if _, err := os.Lstat(filepath.Join(dir, "end")); err == nil {
					return
				}
			}
			write(t, filepath.Join(dir, "end"), "")
		})
	}
	both.Wait()
	err := cmp.Or(failed[0], failed[1])
	if !errors.Is(err, cluster.ErrInvalid) || !strings.Contains(err.Error(), "flock(2) does not reach") {
		t.Errorf("the nodes end with %v and %v", failed[0], failed[1])
	}
	text, _, err := open(t, dir, "c").Collection("counts").Read(t.Context(), "count")
	if want := strconv.Itoa(wrote[0] + wrote[1]); err != nil || string(text) != want {
		t.Errorf("%d and %d writes count %s, %v", wrote[0], wrote[1], text, err)
	}
}

// The file of a killed holder stops nobody for long.
func TestLockHolderKilled(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	if err := os.Mkdir(filepath.Join(dir, holderDir), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, holderDir, holderFile)
	write(t, file, "killed")
	// A file system that fails for a while does not mean that another process works at the same time.
	must(t, unix.Mount(file, file, "", unix.MS_BIND, "")) // it cannot be renamed
	r := open(t, dir, "b")
	_, err := r.Acquire(t.Context(), cluster.Node{})
	must(t, unix.Unmount(file, 0))
	if !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("a file system that does not rename: %v", err)
	}
	if _, err := r.Acquire(t.Context(), cluster.Node{}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, holderDir))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
