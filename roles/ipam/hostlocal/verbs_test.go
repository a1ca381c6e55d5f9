package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// TestRole: what the command line and the documents derive from it.
func TestRole(t *testing.T) {
	if err := (roles.Table{Role()}).Validate(); err != nil {
		t.Error(err)
	}
}

func gcRequest(valid ...string) *roles.Request {
	req := request1("")
	req.Valid = []roles.AttachmentID{}
	for _, v := range valid {
		req.Valid = append(req.Valid, roles.AttachmentID{ContainerID: v, IfName: "eth0"})
	}
	return req
}

func TestGC(t *testing.T) {
	b := newBed(t)
	ctx := context.Background()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "2001:db8::/64"}]]}`)
	other := request1("stale")
	other.Network = "other"
	b.add(t, a, other)
	for _, id := range []string{"valid", "busy", "recorded", "stale"} {
		b.add(t, a, request1(id))
	}
	b.add(t, a, requestFor("valid", "eth1"))
	lock, err := b.Store.LockAttachment(ctx, request1("busy").Key())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	err = b.Store.Update(ctx, func(tx *store.Tx) error {
		return tx.PutAttachment(&store.Attachment{Key: request1("recorded").Key()})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.GC(ctx, b.Host, gcRequest("valid")); err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t),
		"10.1.0.2 valid eth0", "10.1.0.3 busy eth0", "10.1.0.4 recorded eth0",
		"2001:db8::2 valid eth0", "2001:db8::3 busy eth0", "2001:db8::4 recorded eth0",
		"10.1.0.2 stale eth0", "2001:db8::2 stale eth0")
	for i := range 2*gcBatch + 10 {
		b.add(t, a, request1(fmt.Sprint("many", i)))
	}
	if err := a.GC(ctx, b.Host, gcRequest()); err != nil {
		t.Fatal(err)
	}
	if got := b.leases(t); len(got) != 4+2 {
		t.Errorf("left %v", got)
	}
}

// child is a process in a network namespace of its own; the path names that
// namespace for as long as it lives.
func child(t *testing.T) (path string, kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HOSTLOCAL_CHILD=wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(kill)
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), kill
}

func inNetns(req *roles.Request, path string) *roles.Request {
	req.Netns = path
	return req
}

// TestRepeatedAddAfterDeath: the container's namespace is gone, its lease is
// not, as after a crash between IPAM and the interface.
func TestRepeatedAddAfterDeath(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "2001:db8::/64"}]]}`)
	first, kill := child(t)
	second, _ := child(t)
	b.add(t, a, inNetns(request1("one"), first))
	if err := b.addFails(t, a, inNetns(request1("one"), second)); !errors.Is(err, roles.ErrAttached) {
		t.Errorf("while it lives: %v", err)
	}
	kill()
	expect(t, b.add(t, a, inNetns(request1("one"), second)), "10.1.0.3", "2001:db8::3")
	expect(t, b.leases(t), "10.1.0.3 one eth0", "2001:db8::3 one eth0")
}

// TestRepeatedAddUnderTheSamePath: the path is there, but names another
// namespace now.
func TestRepeatedAddUnderTheSamePath(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/24"}`)
	first, _ := child(t)
	second, _ := child(t)
	path := filepath.Join(b.dir, "netns")
	if err := os.Symlink(first, path); err != nil {
		t.Fatal(err)
	}
	b.add(t, a, inNetns(request1("one"), path))
	if err := b.addFails(t, a, inNetns(request1("one"), path)); !errors.Is(err, roles.ErrAttached) {
		t.Errorf("while it lives: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.Symlink(second, path)); err != nil {
		t.Fatal(err)
	}
	expect(t, b.add(t, a, inNetns(request1("one"), path)), "10.1.0.3")
}

// TestRepeatedAddOfUnknownLife: a path that never was a namespace says nothing
// about life and death; neither does one that was not given.
func TestRepeatedAddOfUnknownLife(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/29"}`)
	for i, path := range []string{"", "/no/such/netns", os.DevNull, b.dir} {
		req := inNetns(request1(fmt.Sprint("c", i)), path)
		b.add(t, a, req)
		if err := b.addFails(t, a, req); !errors.Is(err, roles.ErrAttached) {
			t.Errorf("%q: %v", path, err)
		}
	}
	file := filepath.Join(b.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	req := inNetns(request1("file"), file)
	b.add(t, a, req)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := b.addFails(t, a, req); !errors.Is(err, roles.ErrAttached) {
		t.Errorf("a file that is gone: %v", err)
	}
}

// TestRepeatedAddOfRecorded: where an attachment is recorded, its interface
// role decides whether it is dead.
func TestRepeatedAddOfRecorded(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/29"}`)
	path, kill := child(t)
	req := inNetns(request1("one"), path)
	b.add(t, a, req)
	kill()
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		return tx.PutAttachment(&store.Attachment{Key: req.Key()})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.addFails(t, a, req); !errors.Is(err, roles.ErrAttached) {
		t.Error(err)
	}
}

// reaper replaces the node's by one that needs no links: it releases the leases
// of the ids given.
func (b *bed) reaper(a *handler, ids ...string) *int {
	calls := 0
	a.life.reap = func(ctx context.Context, h *roles.Host, network string) (int, error) {
		calls++
		freed := 0
		err := h.Store.Update(ctx, func(tx *store.Tx) error {
			for _, id := range ids {
				gone, err := tx.DeleteLeases(store.Key{Network: network, ContainerID: id, IfName: "eth0"})
				if err != nil {
					return err
				}
				freed += len(gone)
			}
			return nil
		})
		return freed, err
	}
	return &calls
}

func TestExhaustionReaps(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "10.2.0.0/29"}]]}`)
	b.add(t, a, request1("dead"))
	calls := b.reaper(a, "dead")
	expect(t, b.add(t, a, request1("one")), "10.1.0.2", "10.2.0.3")
	if *calls != 1 {
		t.Errorf("%d calls of the reaper", *calls)
	}
	err := b.addFails(t, a, request1("two"))
	if !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), "range set 0 (10.1.0.0/30): 1 addresses, 1 used") {
		t.Error(err)
	}
	if *calls != 2 {
		t.Errorf("%d calls of the reaper", *calls)
	}
}

// TestDeadOwners: with the node's own reaper and real namespaces, a full pool
// is no trouble as long as one of its owners is dead.
func TestDeadOwners(t *testing.T) {
	b := newBed(t)
	o := storeOptions(t, b.dir, "")
	h, done, err := node.Open(context.Background(), node.Options{RunDir: o.RunDir, StateDir: o.StateDir, CacheDirs: []string{b.dir}, Role: "host-local"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	b.Host = h
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "2001:db8::/64"}]]}`)
	a.life = nodeLiveness()
	ctx := context.Background()
	first, kill := child(t)
	second, _ := child(t)
	b.add(t, a, inNetns(request1("one"), first))
	if err := a.Status(ctx, h, request1("")); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("STATUS of a full pool: %v", err)
	}
	if err := b.addFails(t, a, inNetns(request1("two"), second)); !errors.Is(err, roles.ErrExhausted) {
		t.Errorf("ADD to a full pool: %v", err)
	}
	kill()
	if err := a.Status(ctx, h, request1("")); err != nil {
		t.Errorf("STATUS with a dead owner: %v", err)
	}
	expect(t, b.leases(t), "10.1.0.2 one eth0", "2001:db8::2 one eth0")
	expect(t, b.add(t, a, inNetns(request1("two"), second)), "10.1.0.2", "2001:db8::3")
	expect(t, b.leases(t), "10.1.0.2 two eth0", "2001:db8::3 two eth0")
}

func TestRequestedAddressOfTheDead(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/24"}`)
	b.add(t, a, withArgs(t, request1("dead"), "IP=10.1.0.9"))
	b.reaper(a, "dead")
	expect(t, b.add(t, a, withArgs(t, request1("new"), "IP=10.1.0.9")), "10.1.0.9")
}

func TestReapFailure(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/30"}`)
	b.add(t, a, request1("one"))
	a.life.reap = func(context.Context, *roles.Host, string) (int, error) { return 0, errors.New("no links today") }
	if err := b.addFails(t, a, request1("two")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
	if !strings.Contains(b.log.String(), "no links today") {
		t.Errorf("log: %s", b.log)
	}
}

func TestStatus(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "2001:db8::/64"}], [{"subnet": "10.1.0.0/30"}]]}`)
	status := func() error { return a.Status(context.Background(), b.Host, request1("")) }
	if err := status(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.Store.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("STATUS made a file: %v", err)
	}
	b.add(t, a, request1("one"))
	err := status()
	if !errors.Is(err, roles.ErrNotAvailable) || !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), "range set 1 (10.1.0.0/30): 1 addresses, 1 used") {
		t.Error(err)
	}
	a.life.anyDead = func(context.Context, *roles.Host, string) (bool, error) { return true, nil }
	if err := status(); err != nil {
		t.Errorf("somebody is dead: %v", err)
	}
	a.life.anyDead = func(context.Context, *roles.Host, string) (bool, error) { return false, errors.New("no links today") }
	if err := status(); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("nobody knows: %v", err)
	}
	b.del(t, a, request1("one"))
	if err := status(); err != nil {
		t.Error(err)
	}
}

// TestFaultSweep: whichever store call fails, a failed ADD leaves nothing and a
// failed DEL leaves what the next one removes.
func TestFaultSweep(t *testing.T) {
	for n := 1; ; n++ {
		b := newBed(t)
		b.writeDir(t, "net", map[string]string{"10.1.0.2": "old\r\neth0"})
		o := storeOptions(t, b.dir, "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01")
		calls, failed := 0, ""
		o.Probe = func(op string) error {
			// Views and waits change nothing by failing, but they count too.
			calls++
			if calls == n && !strings.Contains(op, "committed") {
				failed = op
				return errInjected
			}
			return nil
		}
		sound := b.Store
		b.Store = store.New(o)
		a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]}`)
		_, addErr := a.Add(context.Background(), b.Host, request1("one"))
		if addErr == nil {
			addErr = a.Del(context.Background(), b.Host, request1("one"))
		}
		b.Store = sound
		if (addErr != nil) != (failed != "") || addErr != nil && !errors.Is(addErr, errInjected) {
			t.Fatalf("call %d (%s): %v", n, failed, addErr)
		}
		b.del(t, a, request1("one"))
		expect(t, b.leases(t), "10.1.0.2 old eth0")
		if calls < n {
			return
		}
	}
}

var errInjected = errors.New("injected")
