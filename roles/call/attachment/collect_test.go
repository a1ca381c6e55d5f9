package attachment_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// collectorDir is the variable with the directory of the state for a process that calls Collect.
const collectorDir = "CNIBOX_TEST_COLLECTOR"

// collect calls Collect twice and returns the containers that it removed.
func collect(ctx context.Context, h *roles.Host) (removed []string, err error) {
	before, n, err := attachment.Collect(ctx, h, nil)
	if err != nil || n != 0 {
		return []string{"the first call removed something"}, err
	}
	had, err := containers(ctx, h)
	if err != nil {
		return nil, err
	}
	if _, _, err = attachment.Collect(ctx, h, before); err != nil {
		return nil, err
	}
	has, err := containers(ctx, h)
	return slices.DeleteFunc(had, func(id string) bool { return slices.Contains(has, id) }), err
}

// containers returns the containers with an attachment or a lease.
func containers(ctx context.Context, h *roles.Host) (ids []string, err error) {
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		dump, err := tx.Export()
		if err != nil {
			return err
		}
		for i := range dump.Attachments {
			ids = append(ids, dump.Attachments[i].ContainerID)
		}
		for _, p := range dump.Pools {
			for _, l := range p.Leases {
				ids = append(ids, l.Owner.ContainerID)
			}
		}
		return nil
	})
	slices.Sort(ids)
	return slices.Compact(ids), err
}

func openNode(t *testing.T, dir string) *roles.Host {
	t.Helper()
	h, done, err := node.Open(t.Context(), node.Options{RunDir: dir + "/run", StateDir: dir + "/lib", Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return h
}

// TestCollector is the process in another mount namespace of TestCollect.
func TestCollector(t *testing.T) {
	dir := os.Getenv(collectorDir)
	if dir == "" {
		t.Skip("a part of TestCollect")
	}
	removed, err := collect(t.Context(), openNode(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(removed)
	if err == nil {
		err = os.WriteFile(dir+"/removed", raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCollect: from the mount namespace of the plugins, and from another one that has the same
// directory, the attachments and leases of removed namespaces are collected. A living container keeps
// its own without its host link, and where its namespace is not visible.
func TestCollect(t *testing.T) {
	gone := []string{"gone", "gone-lease", "gone-veth"}
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{name: "the same mount namespace", want: gone},
		{name: "a service's", script: "exec $COLLECT", want: gone},
		{name: "the mounts are not visible", script: "for d in $DIRS; do umount $d/netns 2>/dev/null; done; exec $COLLECT", want: gone},
		{name: "the directory is another", script: "for d in $DIRS; do mount -t tmpfs none $d; done; exec $COLLECT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			h := openNode(t, dir)
			dirs := leaveBehind(t, h)
			var removed []string
			var err error
			if c.script == "" {
				removed, err = collect(t.Context(), h)
			} else {
				cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", c.script)
				cmd.Env = append(os.Environ(), collectorDir+"="+dir, "DIRS="+strings.Join(dirs, " "), "COLLECT="+os.Args[0]+" -test.run=^TestCollector$")
				out, runErr := cmd.CombinedOutput()
				raw, readErr := os.ReadFile(dir + "/removed")
				if runErr != nil || readErr != nil {
					t.Fatalf("%v %v\n%s", runErr, readErr, out)
				}
				err = json.Unmarshal(raw, &removed)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, removed, cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// leaveBehind records attachments of living containers and of removed ones. It returns the
// directories of their namespaces.
func leaveBehind(t *testing.T, h *roles.Host) (dirs []string) {
	t.Helper()
	for i, id := range []string{"alive", "alive-lease", "alive-unlinked", "gone", "gone-lease", "gone-veth"} {
		key := store.Key{Network: "pods", ContainerID: id, IfName: "eth0"}
		ns := netopstest.New(t)
		dirs = append(dirs, filepath.Dir(ns.Path()))
		open, err := h.Net.OpenNamespace(ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		where := attachment.ThisNetns(ns.Path(), open)
		if err := open.Close(); err != nil {
			t.Fatal(err)
		}
		a := &store.Attachment{Key: key, Netns: where, Parts: []store.Part{{Role: "bridge", State: store.Done}}}
		if id == "alive-unlinked" || id == "gone-veth" { // the link is absent
			a.HostLink = attachment.HostLink(key)
		}
		err = h.Store.Update(t.Context(), func(tx *store.Tx) error {
			p, err := tx.Pool(store.PoolID{Network: "pods", DataDir: "/var/lib/cni/networks"})
			if err != nil {
				return err
			}
			err = p.Reserve(store.Lease{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}), Owner: key, Netns: where})
			if err != nil || strings.HasSuffix(id, "-lease") {
				return err
			}
			return tx.PutAttachment(a)
		})
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(id, "gone") {
			ns.Remove(t)
		}
	}
	return dirs
}
