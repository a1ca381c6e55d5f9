package multi_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// damage makes the record of a pod's networks undecodable. It keeps the file's modification
// time, so that the program does not compare the pages with their checksum.
func (w *world) damage(pod string) {
	w.t.Helper()
	file := filepath.Join(w.StateDir(), "keep.db")
	raw, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	broken := bytes.ReplaceAll(raw, []byte(`"pod":"`+pod+`",`), []byte(`"pod":"`+pod+`"!`))
	if bytes.Equal(raw, broken) {
		w.t.Fatal("no such record")
	}
	st, err := os.Stat(file)
	if err == nil {
		err = errors.Join(os.WriteFile(file, broken, 0o600), os.Chtimes(file, time.Time{}, st.ModTime()))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestRecordLost: the networks of a pod's annotations are detached even if their record is lost,
// because the state file has the interfaces.
func TestRecordLost(t *testing.T) {
	for name, lose := range map[string]func(*world) error{
		"file gone": func(w *world) error { return os.Remove(filepath.Join(w.StateDir(), "keep.db")) },
		"cut short": func(w *world) error { return os.Truncate(filepath.Join(w.StateDir(), "keep.db"), 0) },
		"record":    func(w *world) error { w.damage("web/pod"); return nil },
	} {
		for _, verb := range []string{"DEL", "GC"} {
			if verb == "GC" && name == "cut short" {
				continue // the valid attachments are unknown
			}
			t.Run(name+" "+verb, func(t *testing.T) {
				w := newWorld(t)
				w.wish("b,c@extra")
				start := w.warm()
				w.OK(w.call("ADD"))
				if err := lose(w); err != nil {
					t.Fatal(err)
				}
				if verb == "DEL" {
					w.OK(w.bare())
				} else {
					w.OK(w.gc([]roles.AttachmentID{}))
				}
				if state := w.state(); strings.Contains(state, "container1") || strings.Contains(state, "10.2.0.2") {
					t.Errorf("after %s:\n%s\nwant\n%s", verb, state, start)
				}
				w.dropBridges()
			})
		}
	}
}

// TestDamagedRecord: a damaged record affects its own container only. GC leaves that container
// unchanged while it is valid.
func TestDamagedRecord(t *testing.T) {
	w := newWorld(t)
	netopstest.Master(t, "uplink2")
	w.network("x", `{"name":"net-x","type":"macvlan","host_device":"uplink2","vxlan":4712,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`)
	w.wish("s,x,b")
	w.OK(w.call("ADD"))
	second := w.call("ADD")
	second.ID, second.Netns = "container2", netopstest.New(t).Path()
	second.Args = strings.Replace(second.Args, "K8S_POD_NAME=pod", "K8S_POD_NAME=pod2", 1)
	w.OK(second)
	w.damage("web/pod")
	before := w.ns.Snapshot(t)
	if err := errors.Join(w.verb("attach", "web/pod2", "c@hot"), w.verb("detach", "web/pod2", "@hot")); err != nil {
		t.Error(err)
	}
	w.OK(w.gc([]roles.AttachmentID{{ContainerID: "container1", IfName: "eth0"}, {ContainerID: "container2", IfName: "eth0"}}))
	calls, confs := w.calls()
	if last := confs[len(confs)-1]; !strings.HasPrefix(calls[len(calls)-1], "GC") || !strings.Contains(last, `{"containerID":"container1","ifname":"net1"}`) || !strings.Contains(last, `{"containerID":"container2","ifname":"net1"}`) {
		t.Errorf("%s was given %s", calls[len(calls)-1], last)
	}
	second.Verb = "DEL"
	w.OK(second)
	if after := w.ns.Snapshot(t); after != before {
		t.Errorf("container1 had\n%s\nand has\n%s", before, after)
	}
	w.OK(w.call("DEL"))
	if state := w.state(); strings.Contains(state, "container1") {
		t.Errorf("after DEL\n%s", state)
	}
}
