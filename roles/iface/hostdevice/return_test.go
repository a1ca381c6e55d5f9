package hostdevice_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestReturn ends the namespace that a device is in. The kernel then moves the
// device back to the host, under the name that it had in the container, or
// under another name if that is taken. The next verb restores the device's own
// name.
func TestReturn(t *testing.T) {
	nic := netopstest.NeedDevices(t)
	c := conf(`"device":"` + nic[0] + `",` + dual)
	for _, then := range []struct {
		name string
		do   func(*rig)
	}{
		{"DEL", func(r *rig) { r.OK(r.call("DEL", "c1", c)) }},
		{"DEL with an empty CNI_NETNS", func(r *rig) {
			del := r.call("DEL", "c1", c)
			del.Netns = ""
			r.OK(del)
		}},
		{"GC", func(r *rig) { r.OK(r.gc(c)) }},
		{"ADD for another container", func(r *rig) {
			r.OK(r.call("ADD", "c2", c))
			r.OK(r.call("DEL", "c2", c))
		}},
		{"ADD by another selector", func(r *rig) {
			other := conf(`"pciBusID":"` + pciAddress(r.t, hardware(r.t, nic[1])) + `","device":"` + nic[0] + `"`)
			r.OK(r.call("ADD", "c2", other))
			r.OK(r.call("DEL", "c2", other))
		}},
		{"ADD of the same container", func(r *rig) {
			r.spaces["c1"] = netopstest.New(r.t)
			r.OK(r.call("ADD", "c1", c))
			r.OK(r.call("DEL", "c1", c))
		}},
		{"GC without a record", func(r *rig) {
			r.await(nic[0])
			r.lose()
			r.OK(r.gc(c))
		}},
		{"DEL without a record", func(r *rig) {
			r.await(nic[0])
			r.lose()
			r.OK(r.call("DEL", "c1", c))
		}},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(then.name+map[bool]string{true: ", name taken", false: ""}[taken], func(t *testing.T) {
				r := newRig(t)
				if taken {
					br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
					must(t, netlink.LinkAdd(br))
					defer func() { must(t, netlink.LinkDel(br)) }()
				}
				before := r.State(nil)
				r.OK(r.call("ADD", "c1", c))
				// The kernel removes the namespace later, while the next verb
				// may already run.
				must(t, unix.Unmount(r.spaces["c1"].Path(), unix.MNT_DETACH))
				must(t, os.Remove(r.spaces["c1"].Path()))
				then.do(r)
				r.same(before, "after the namespace ended, "+then.name)
			})
		}
	}
}

// gc runs GC with an empty list.
func (r *rig) gc(conf string) rolestest.Call {
	r.t.Helper()
	c := r.call("GC", "", conf)
	c.Netns, c.IfName = "", ""
	c.Conf = rolestest.WithKeys(r.t, c.Conf, map[string]any{"cni.dev/valid-attachments": []roles.AttachmentID{}})
	return c
}

// await waits until a device that had the given name is back on the host.
func (r *rig) await(name string) {
	r.t.Helper()
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	must(r.t, netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{ListExisting: true}))
	limit := time.After(await.Patience)
	for {
		select {
		case u := <-updates:
			if strings.Contains(u.Attrs().Alias, " "+name+" ") {
				return
			}
		case <-limit:
			r.t.Fatalf("%q did not come back", name)
		}
	}
}
