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
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// child starts a process in a separate network namespace. path is the namespace's path while the
// process lives.
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

// TestRepeatedAddAfterDeath: the container's namespace no longer exists, but its lease does, as after
// a crash between IPAM and interface.
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

// TestRepeatedAddUnderTheSamePath: the path exists, but is of another namespace now.
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

// TestRepeatedAddOfUnknownLife: a lease whose path never was a namespace, or is missing, counts as
// alive.
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

// TestRepeatedAddOfRecorded: if an attachment is recorded, the record decides whether it is dead.
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

// reaper replaces the node's reaper by one that reads no links and releases the leases of the given
// containers.
func (b *bed) reaper(a *handler, ids ...string) *int {
	calls := 0
	a.Life.Reap = func(ctx context.Context, h *roles.Host, network string) (int, error) {
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

// TestDeadOwners: with the node's own reaper and real namespaces, ADD succeeds in a full pool if one
// of its owners is dead.
func TestDeadOwners(t *testing.T) {
	b := newBed(t)
	o := storeOptions(t, b.dir, "")
	h, done, err := node.Open(context.Background(), node.Options{RunDir: o.RunDir, StateDir: o.StateDir, CacheDirs: []string{b.dir}, Role: "host-local", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	b.Host = h
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "2001:db8::/64"}]]}`)
	a.Life = leasing.NodeLiveness()
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
	a.Life.Reap = func(context.Context, *roles.Host, string) (int, error) { return 0, errors.New("no links today") }
	if err := b.addFails(t, a, request1("two")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
	if !strings.Contains(b.log.String(), "no links today") {
		t.Errorf("log: %s", b.log)
	}
}
