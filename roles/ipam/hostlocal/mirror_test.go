package hostlocal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

const mirrored = `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]}`

// peer returns the path of the reference's host-local.
func peer(tb testing.TB) string {
	tb.Helper()
	peer, err := filepath.Abs("../../../bin/peers/host-local")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(peer); err != nil {
		tb.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	return peer
}

// reference runs the reference's host-local on the bed's directory and returns its addresses.
func (b *bed) reference(tb testing.TB, verb, id, ipam string) ([]string, error) {
	tb.Helper()
	cmd := exec.Command(peer(tb))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_NETNS=/none", "CNI_IFNAME=eth0", "CNI_PATH=/none"}
	cmd.Stdin = strings.NewReader(b.conf(ipam))
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", verb, id, err, out)
	}
	if verb != "ADD" {
		return nil, nil
	}
	var r types100.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, err
	}
	return ipsOf(&r), nil
}

// ref is reference for a call that must succeed.
func (b *bed) ref(tb testing.TB, verb, id string) []string {
	tb.Helper()
	ips, err := b.reference(tb, verb, id, mirrored)
	if err != nil {
		tb.Fatal(err)
	}
	return ips
}

// TestMirror: the files of a lease are those that the reference writes, and DEL removes the address's.
func TestMirror(t *testing.T) {
	b, c := newBed(t), newBed(t)
	a := b.handlerFor(t, mirrored)
	b.add(t, a, request1("one"))
	c.ref(t, "ADD", "one")
	ours, theirs := readDir(t, filepath.Join(b.dataDir(), "net")), readDir(t, filepath.Join(c.dataDir(), "net"))
	for name, file := range theirs {
		if have := ours[name]; name != "lock" && have != file {
			t.Errorf("%s: %q, want %q", name, have, file)
		}
	}
	for _, dir := range []string{"", "net"} {
		have, err := os.Stat(filepath.Join(b.dataDir(), dir))
		want, wantErr := os.Stat(filepath.Join(c.dataDir(), dir))
		if err != nil || wantErr != nil || have.Mode() != want.Mode() {
			t.Errorf("directory %q: %v, %v, %v", dir, have, err, wantErr)
		}
	}
	b.del(t, a, request1("one"))
	expect(t, b.files(t), "lock ")
}

// TestMirrorChecked: CHECK notices that the file of a lease is gone, or the whole directory.
// The export that its error names restores the file.
func TestMirrorChecked(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, mirrored)
	req := request1("one")
	var err error
	if req.PrevResult, err = a.Add(t.Context(), b.Host, req); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"net/2001:db8::2", "net", ""} {
		if err := a.Check(t.Context(), b.Host, req); err != nil {
			t.Fatalf("before %q is removed: %v", gone, err)
		}
		if err := os.RemoveAll(filepath.Join(b.dataDir(), gone)); err != nil {
			t.Fatal(err)
		}
		err := a.Check(t.Context(), b.Host, req)
		if !errors.Is(err, roles.ErrCheck) || !strings.Contains(err.Error(), "2001:db8::2") || !strings.Contains(err.Error(), "state export --format host-local "+b.dataDir()) {
			t.Fatalf("after %q is removed: error %v", gone, err)
		}
		if _, err := leasefiles.Export(t.Context(), b.Host, b.dataDir()); err != nil {
			t.Fatal(err)
		}
	}
	b.del(t, a, request1("one"))
	if err := b.handlerFor(t, strings.Replace(mirrored, "{", `{"mirror": false, `, 1)).Check(t.Context(), b.Host, req); !errors.Is(err, roles.ErrCheck) || strings.Contains(err.Error(), "file") {
		t.Errorf("without a mirror: %v", err)
	}
}

// expectNoLeaseFiles allows only the lock and the reference's last_reserved_ip.
func (b *bed) expectNoLeaseFiles(t *testing.T) {
	t.Helper()
	for _, f := range b.files(t) {
		if !strings.HasPrefix(f, "l") {
			t.Errorf("left is %s", f)
		}
	}
}

// TestMirrorBackAndForth: the reference's binary comes back on a node with attachments of cnibox,
// and cnibox after it, and the reference again. No address is used twice, each side detaches
// containers of the other, and nothing stays.
func TestMirrorBackAndForth(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, mirrored)
	used := map[string]string{}
	note := func(id string, ips []string) {
		t.Helper()
		for _, ip := range ips {
			if other, ok := used[ip]; ok {
				t.Errorf("%s is used by %s and %s", ip, other, id)
			}
			used[ip] = id
		}
	}
	gone := func(id string) {
		for ip, of := range used {
			if of == id {
				delete(used, ip)
			}
		}
	}
	id := func(side string, turn, i int) string { return fmt.Sprintf("%s-%d-%d", side, turn, i) }
	for turn := range 3 {
		for i := range 30 {
			note(id("ours", turn, i), b.add(t, a, request1(id("ours", turn, i))))
		}
		for i := range 30 {
			note(id("theirs", turn, i), b.ref(t, "ADD", id("theirs", turn, i)))
		}
		for i := range 10 { // each side releases its own and the other's
			b.ref(t, "DEL", id("ours", turn, i))
			gone(id("ours", turn, i))
			b.ref(t, "DEL", id("theirs", turn, i))
			gone(id("theirs", turn, i))
			b.del(t, a, request1(id("theirs", turn, i+10)))
			gone(id("theirs", turn, i+10))
			b.del(t, a, request1(id("ours", turn, i+10)))
			gone(id("ours", turn, i+10))
		}
	}
	for turn := range 3 {
		for i := range 30 {
			b.del(t, a, request1(id("ours", turn, i)))
			b.del(t, a, request1(id("theirs", turn, i)))
		}
	}
	expect(t, b.leases(t))
	b.expectNoLeaseFiles(t)
}

// TestMirrorParallel: both sides attach at the same time, in a directory that is new.
func TestMirrorParallel(t *testing.T) {
	const each = 150
	b := newBed(t)
	b.ref(t, "DEL", "nobody") // skips without the binary
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/23"}`)
	var guard sync.Mutex
	used := map[string]string{}
	note := func(id string, ips []string, err error) {
		guard.Lock()
		defer guard.Unlock()
		if err != nil {
			t.Error(err)
			return
		}
		for _, ip := range ips {
			if other, ok := used[ip]; ok {
				t.Errorf("%s is used by %s and %s", ip, other, id)
			}
			used[ip] = id
		}
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < each; i += 4 {
				id := fmt.Sprint("ours", i)
				r, err := a.Add(t.Context(), b.Host, request1(id))
				var ips []string
				if err == nil {
					ips = ipsOf(r)
				}
				note(id, ips, err)
			}
		})
		wg.Go(func() {
			for i := w; i < each; i += 4 {
				id := fmt.Sprint("theirs", i)
				ips, err := b.reference(t, "ADD", id, `{"subnet": "10.1.0.0/23"}`)
				note(id, ips, err)
			}
		})
	}
	wg.Wait()
	if len(used) != 2*each {
		t.Errorf("%d addresses, want %d", len(used), 2*each)
	}
	for i := range each {
		b.del(t, a, request1(fmt.Sprint("ours", i)))
		b.del(t, a, request1(fmt.Sprint("theirs", i)))
	}
	expect(t, b.leases(t))
	b.expectNoLeaseFiles(t)
}

// TestMirrorAfterLoss: DEL and GC remove the files of attachments whose record was lost, or that
// are from before the boot, and GC removes nothing of a container that it does not know yet.
func TestMirrorAfterLoss(t *testing.T) {
	for verb, leave := range map[string]func(*testing.T, *bed, *handler){
		"DEL": func(t *testing.T, b *bed, a *handler) { t.Helper(); b.del(t, a, request1("one")) },
		"GC": func(t *testing.T, b *bed, a *handler) {
			t.Helper()
			for range 2 { // the first keeps the files for the GC of chained roles
				if err := a.GC(t.Context(), b.Host, gcRequest("two")); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(verb, func(t *testing.T) {
			for name, lose := range map[string]func(*bed){
				"lost": func(b *bed) {
					if err := os.RemoveAll(filepath.Dir(b.Store.Path())); err != nil {
						t.Fatal(err)
					}
				},
				"reboot": func(b *bed) { b.reboot(t) },
			} {
				t.Run(name, func(t *testing.T) {
					b := newBed(t)
					a := b.handlerFor(t, mirrored)
					b.add(t, a, request1("one"))
					b.add(t, a, request1("two"))
					lose(b)
					leave(t, b, a)
					expect(t, b.files(t), "10.1.0.3 two eth0", "2001:db8::3 two eth0", "lock ")
				})
			}
		})
	}
}

// TestMirrorKilled: an ADD that is killed leaves at most a lease without a file or with an empty
// one, and DEL removes both. A DEL that is killed leaves at most a lease without a file.
func TestMirrorKilled(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, mirrored)
	file := filepath.Join(b.dataDir(), "net", "10.1.0.2")
	for name, kill := range map[string]func() error{
		"before the file":                       func() error { return os.Remove(file) },
		"between creation and writing":          func() error { return os.Truncate(file, 0) },
		"the reference has the address instead": func() error { return os.WriteFile(file, []byte("foreign\r\neth0"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			b.add(t, a, withArgs(t, request1("one"), "IP=10.1.0.2"))
			if err := kill(); err != nil {
				t.Fatal(err)
			}
			b.del(t, a, request1("one"))
			expect(t, b.leases(t))
			if name != "the reference has the address instead" {
				expect(t, b.files(t), "lock ")
				return
			}
			expect(t, b.files(t), "10.1.0.2 foreign eth0", "lock ")
			b.del(t, a, request1("foreign"))
			expect(t, b.files(t), "lock ")
		})
	}
	b.writeFile(t, filepath.Dir(file), "10.1.0.5", "") // the reference was killed
	expect(t, b.add(t, a, withArgs(t, request1("one"), "IP=10.1.0.5"))[:1], "10.1.0.5")
}

// TestMirrorPlaces: directories that cannot be written, and those that must not be.
func TestMirrorPlaces(t *testing.T) {
	mount := func(t *testing.T, b *bed, options string) {
		t.Helper()
		if err := os.MkdirAll(b.dataDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", b.dataDir(), "tmpfs", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(b.dataDir(), unix.MNT_DETACH) })
	}
	for name, c := range map[string]struct {
		prepare func(*testing.T, *bed)
		want    error
	}{
		"another file system": {func(t *testing.T, b *bed) { t.Helper(); mount(t, b, "size=1m") }, nil},
		"read-only": {func(t *testing.T, b *bed) {
			t.Helper()
			mount(t, b, "size=1m")
			if err := unix.Mount("", b.dataDir(), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"full": {func(t *testing.T, b *bed) {
			t.Helper()
			mount(t, b, "nr_inodes=3")
		}, unix.ENOSPC},
		"a link": {func(t *testing.T, b *bed) {
			t.Helper()
			real := b.writeDir(t, "elsewhere", nil)
			if err := os.Symlink(real, filepath.Join(b.dataDir(), "net")); err != nil {
				t.Fatal(err)
			}
		}, leasefiles.ErrDirectory},
		"below a file": {func(t *testing.T, b *bed) {
			t.Helper()
			if err := os.WriteFile(b.dataDir(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			c.prepare(t, b)
			a := b.handlerFor(t, mirrored)
			if c.want != nil {
				if err := b.addFails(t, a, request1("one")); !errors.Is(err, c.want) {
					t.Errorf("ADD: %v", err)
				}
				return
			}
			checked := request1("one")
			res, err := a.Add(t.Context(), b.Host, checked)
			if err != nil {
				t.Fatal(err)
			}
			checked.PrevResult = res
			if err := a.Check(t.Context(), b.Host, checked); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			b.add(t, a, request1("two"))
			b.del(t, a, request1("one"))
			b.del(t, a, request1("one"))
			expect(t, b.leases(t), "10.1.0.3 two eth0", "2001:db8::3 two eth0")
			if warned := bytes.Contains(b.log.Bytes(), []byte("cannot be written")); warned == (name == "another file system") {
				t.Errorf("log: %s", b.log)
			}
		})
	}
}

// TestMirrorAvoids: an address with a file that is not a lease's is taken, for the reference too.
func TestMirrorAvoids(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", map[string]string{"10.1.0.3": "a b c"})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	a := b.handlerFor(t, mirrored)
	for _, at := range []string{"10.1.0.2", "10.1.0.3"} {
		if err := b.addFails(t, a, withArgs(t, request1("one"), "IP="+at)); !errors.Is(err, store.ErrTaken) {
			t.Errorf("%s: %v", at, err)
		}
	}
	expect(t, b.add(t, a, request1("one"))[:1], "10.1.0.4")
}

// TestMirrorOff: with "mirror": false ADD writes nothing. A simulated node does not write the
// machine's default directory.
func TestMirrorOff(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"mirror": false, "subnet": "10.1.0.0/24"}`)
	b.add(t, a, request1("one"))
	if _, err := os.Stat(b.dataDir()); err == nil {
		t.Error("dataDir was made")
	}
	id := store.PoolID{DataDir: defaultDataDir, Network: "net"}
	if (leasefiles.Files{}).Serves(b.Host, id) {
		t.Error("a simulated node writes the machine's directory")
	}
	real := &roles.Host{Store: store.New(store.Options{RunDir: store.DefaultRunDir})}
	if !(leasefiles.Files{}).Serves(real, id) {
		t.Error("a node does not write its directory")
	}
}

// TestMirrorKillSweep kills ADD and DEL at every step on the state file. Before the next DEL the
// reference attaches, without a duplicate, and after it neither a lease nor a file is left.
func TestMirrorKillSweep(t *testing.T) {
	b := newBed(t)
	b.ref(t, "DEL", "nobody") // skips without the binary
	e, ns := rolestest.NewEnv(t, tabletest.Of(Role())), netopstest.New(t)
	call := func(verb, id, probe string) rolestest.Call {
		return rolestest.Call{Type: "host-local", Verb: verb, ID: id, Netns: ns.Path(), IfName: "eth0", Conf: b.conf(mirrored), Probe: probe}
	}
	addresses := func(out string) []string {
		t.Helper()
		var r types100.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		return ipsOf(&r)
	}
	lives := addresses(e.OK(call("ADD", "lives", "")).Stdout)
	for _, verb := range []string{"ADD", "DEL"} {
		for n := 1; ; n++ {
			if verb == "DEL" {
				e.OK(call("ADD", "one", ""))
			}
			killed := e.Run(call(verb, "one", fmt.Sprint("store:kill:", n))).Code != 0
			for _, ip := range b.ref(t, "ADD", "theirs") {
				if slices.Contains(lives, ip) {
					t.Fatalf("%s killed at %d: %s is used twice", verb, n, ip)
				}
			}
			e.OK(call("DEL", "one", ""))
			e.OK(call("DEL", "theirs", ""))
			if have := slices.DeleteFunc(b.files(t), func(f string) bool { return f[0] == 'l' }); len(have) != 2 {
				t.Fatalf("%s killed at %d: files %q", verb, n, have)
			}
			if !killed {
				break
			}
		}
	}
	e.OK(call("DEL", "lives", ""))
	b.expectNoLeaseFiles(t)
	if state := e.State(nil); strings.Contains(state, "10.1.0.") {
		t.Errorf("left in the store: %s", state)
	}
}

// TestMirrorWaits: DEL compares and removes a file under the reference's lock, and keeps the lease
// and the file if it cannot wait for the lock.
func TestMirrorWaits(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, mirrored)
	dir := b.writeDir(t, "net", nil)
	b.add(t, a, request1("one"))
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.Del(ctx, b.Host, request1("one")); !errors.Is(err, store.ErrBusy) {
		t.Errorf("DEL while the directory is locked: %v", err)
	}
	expect(t, b.leases(t), "10.1.0.2 one eth0", "2001:db8::2 one eth0")
	expect(t, b.files(t), "10.1.0.2 one eth0", "2001:db8::2 one eth0", "lock ")
	done := make(chan error)
	go func() { done <- a.Del(t.Context(), b.Host, request1("one")) }()
	b.writeFile(t, dir, "10.1.0.2", "other\r\neth0") // the reference gives the address to another container
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	expect(t, b.leases(t))
	expect(t, b.files(t), "10.1.0.2 other eth0", "lock ")
}

// TestMirrorKeepsFiles: a transaction that releases an address and leases it to the same container
// again, as `cnibox state import` does, keeps the file.
func TestMirrorKeepsFiles(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, mirrored)
	b.add(t, a, request1("one"))
	before := b.files(t)
	err := b.Store.Update(t.Context(), func(tx *store.Tx) error {
		d, err := tx.Export()
		if err != nil {
			return err
		}
		return tx.Import(d, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b.files(t), before...)
}
