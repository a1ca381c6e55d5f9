package netops_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestSysctlOdd tests a setting whose original value is empty, and a write-only
// setting.
func TestSysctlOdd(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Sysctl{In: netops.Container, Key: "net/ipv4/ip_local_reserved_ports", Value: "8080"},
		&netops.Sysctl{In: netops.Container, Key: "net/ipv4/route/flush", Value: "1"},
	}}
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	if err := n.Undo(ctx, plan.Changes, ns); err != nil {
		t.Fatal(err)
	}
	if have, err := n.Sysctl(ctx, ns, "net/ipv4/ip_local_reserved_ports"); have != "" || err != nil {
		t.Errorf("after Undo: %q, %v", have, err)
	}
}

// TestSysctlOfLink tests settings that rtnetlink reads or writes.
func TestSysctlOfLink(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	const accept, notify = "net/ipv6/conf/br0/accept_ra", "net/ipv4/conf/br0/arp_notify"
	bridge := &netops.Link{In: netops.Container, Shared: true, Name: "br0", Kind: "bridge"}
	set := func(accepted, notified string) netops.Spec {
		return netops.Spec{Objects: []netops.Object{
			bridge,
			&netops.Sysctl{In: netops.Container, Key: accept, Value: accepted},
			&netops.Sysctl{In: netops.Container, Key: notify, Value: notified},
		}}
	}
	for _, values := range [][2]string{{"0", "1"}, {"2", "0"}, {"1", "1"}} {
		spec := set(values[0], values[1])
		if err := n.Ensure(ctx, spec, ns); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{accept: values[0], notify: values[1]} {
			if have, err := n.Sysctl(ctx, ns, key); have != want || err != nil {
				t.Errorf("%s is %q, %v, not %q", key, have, err, want)
			}
		}
		if plan, err := n.Plan(ctx, spec, ns); len(plan.Changes) != 0 || err != nil {
			t.Errorf("planned again: %v, %v", plan.Changes, err)
		}
		if diffs, err := n.Verify(ctx, spec, ns); len(diffs) != 0 || err != nil {
			t.Errorf("verified: %v, %v", diffs, err)
		}
		other := set("9", values[1])
		if diffs, err := n.Verify(ctx, other, ns); len(diffs) != 1 || err != nil {
			t.Errorf("verified another value: %v, %v", diffs, err)
		}
	}
}

// TestSysctlOfOtherFamily tests a setting of a link on which the kernel has no IPv6. It is
// an error unless it is optional.
func TestSysctlOfOtherFamily(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	for _, optional := range []bool{true, false} {
		err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{
			&netops.Link{In: netops.Container, Shared: true, Name: fmt.Sprintf("br-%v", optional), Kind: "bridge", MTU: 1000},
			&netops.Sysctl{In: netops.Container, Key: fmt.Sprintf("net/ipv6/conf/br-%v/addr_gen_mode", optional), Value: netops.AddrGenNone, Optional: optional},
		}}, ns)
		if (err == nil) != optional {
			t.Errorf("optional %v: %v", optional, err)
		}
	}
}

// TestSysctlReadOnly: with a read-only /proc/sys a setting that has its value already can be set,
// and so can an optional one of another value, which then is no difference.
func TestSysctlReadOnly(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	netopstest.ReadOnlySysctls(t)
	const key = "net/ipv4/conf/%s/send_redirects" // the kernel's default is 1
	for i, of := range []struct {
		value    string
		optional bool
		want     error
	}{{"1", false, nil}, {"0", true, nil}, {"1", true, nil}, {"0", false, unix.EROFS}} {
		name := fmt.Sprintf("br%d", i)
		link := &netops.Link{In: netops.Container, Name: name, Kind: "bridge"}
		set := &netops.Sysctl{In: netops.Container, Key: fmt.Sprintf(key, name), Value: of.value, Optional: of.optional}
		spec := netops.Spec{Objects: []netops.Object{link, set}}
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Apply(ctx, plan, ns); !errors.Is(err, of.want) {
			t.Errorf("%+v: Apply: %v", of, err)
		}
		if of.want != nil {
			continue
		}
		if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
			t.Errorf("%+v: Verify: %v, %v", of, diffs, err)
		}
		if err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{set}}, ns); err != nil {
			t.Errorf("%+v: again: %v", of, err)
		}
		if err := n.Undo(ctx, plan.Changes, ns); err != nil {
			t.Errorf("%+v: Undo: %v", of, err)
		}
	}
}
