package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// TestResult: the result is that of azure-vnet-ipam (prefix length of the subnet, default
// route through the gateway, DNS), and the interface role finds the NIC in it.
func TestResult(t *testing.T) {
	b := newBed(t)
	n := nic(macA, true, "10.240.0.0/16", "10.240.0.4", "10.240.0.36")
	n.DNS = addrs("168.63.129.16")
	b.gives(t, n)
	r, err := b.handlerFor(t, "").Add(context.Background(), b.Host, request("a"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"1.1.0","dns":{"nameservers":["168.63.129.16"]},"ips":[{"address":"10.240.0.36/16","gateway":"10.240.0.1"}],` +
		`"routes":[{"dst":"0.0.0.0/0","gw":"10.240.0.1"}]}`
	expect(t, string(raw), want)
	locations, err := attachment.CloudLocations(context.Background(), b.Host, request("a").Key())
	if err != nil || len(locations) != 1 || locations[0].NIC.MAC != macA || locations[0].Subnet.Prefix.String() != "10.240.0.0/16" {
		t.Errorf("locations %+v, %v", locations, err)
	}
}

func TestOverrides(t *testing.T) {
	b := newBed(t)
	n := nic(macA, true, "10.240.0.0/16", "10.240.0.36")
	n.DNS = addrs("168.63.129.16")
	b.gives(t, n)
	r, err := b.handlerFor(t, `"routes": [{"dst": "10.0.0.0/8"}], "dns": {"nameservers": ["10.0.0.10"]}`).Add(context.Background(), b.Host, request("a"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(raw), `"routes":[{"dst":"10.0.0.0/8"}]`) || !strings.Contains(string(raw), `"dns":{"nameservers":["10.0.0.10"]}`) {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestPreference: other NICs before the primary, larger subnets before smaller,
// and the next subnet when one is full. azure-vnet-ipam does not use the next subnet.
func TestPreference(t *testing.T) {
	b := newBed(t)
	second := nic(macB, false, "10.242.0.0/24", "10.242.0.5")
	second.Subnets = append(second.Subnets, nic("", false, "10.243.0.0/24", "10.243.0.16/31").Subnets...)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.4", "10.240.0.37"), second)
	a := b.handlerFor(t, "")
	for i, want := range []string{"10.243.0.16", "10.243.0.17", "10.242.0.5", "10.240.0.36", "10.240.0.37"} {
		expect(t, b.add(t, a, request(fmt.Sprint(i))), want)
	}
	err := b.addFails(t, a, request("more"))
	const want = "pool 10.243.0.0/24, 10.242.0.0/24, 10.240.0.0/16: 5 addresses, 5 used; held longest: "
	if !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "max-pods") {
		t.Error(err)
	}
	if err := a.Status(context.Background(), b.Host, request("")); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("STATUS of a full pool: %v", err)
	}
}

// TestCooldown: addresses that were never used come first, then the least recently used
// ones. No address is assigned within 30 s of its release (amazon-vpc-cni's
// IP_COOLDOWN_PERIOD), whichever call released it.
func TestCooldown(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37", "10.240.0.38"))
	a := b.handlerFor(t, "")
	expect(t, b.add(t, a, request("a")), "10.240.0.36")
	expect(t, b.add(t, a, request("b")), "10.240.0.37")
	b.del(t, a, "b")
	b.pass(time.Second)
	b.del(t, a, "a")
	expect(t, b.add(t, a, request("c")), "10.240.0.38")
	err := b.addFails(t, a, request("d"))
	const want = "1 used; held longest: 10.240.0.38 by \"c\" \"eth0\" since 2026-03-04T05:07:08Z; 2 cooling down, the next is free at 2026-03-04T05:07:37Z; 0 withdrawn"
	if !errors.Is(err, roles.ErrExhausted) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	if err := b.addFails(t, a, withArgs(t, request("d"), "IP=10.240.0.36")); !strings.Contains(err.Error(), "cools down until 2026-03-04T05:07:38Z") {
		t.Error(err)
	}
	b.pass(29 * time.Second)
	expect(t, b.add(t, a, request("d")), "10.240.0.37")
	b.addFails(t, a, request("e"))
	b.pass(time.Second)
	expect(t, b.add(t, a, request("e")), "10.240.0.36")
}

// TestClockSetBack: an address whose release time is in the future can be assigned.
func TestClockSetBack(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, "")
	b.add(t, a, request("a"))
	b.add(t, a, request("b"))
	b.del(t, a, "a")
	b.pass(100 * 24 * time.Hour)
	b.del(t, a, "b")
	b.pass(-99 * 24 * time.Hour)
	expect(t, b.add(t, a, request("c")), "10.240.0.36")
	expect(t, b.add(t, a, request("d")), "10.240.0.37")
}

// TestWithdrawn: a pod keeps an address that the cloud no longer reports. After DEL no
// pod gets the address until the cloud reports it again
// (amazon-vpc-cni #3887, #3033; azure's "unhealthy").
func TestWithdrawn(t *testing.T) {
	b := newBed(t)
	ctx := context.Background()
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, `"cooldown": 0`)
	expect(t, b.add(t, a, request("a")), "10.240.0.36")
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.37"))
	expect(t, b.add(t, a, request("b")), "10.240.0.37")
	check := request("a")
	check.PrevResult = &roles.Result{CNIVersion: "1.1.0"}
	if err := a.Check(ctx, b.Host, check); err != nil {
		t.Errorf("CHECK of a withdrawn address: %v", err)
	}
	if err := b.addFails(t, a, request("c")); !strings.Contains(err.Error(), "1 addresses, 1 used") || !strings.Contains(err.Error(), "1 withdrawn") {
		t.Error(err)
	}
	b.del(t, a, "a")
	b.addFails(t, a, request("c"))
	b.addFails(t, a, withArgs(t, request("c"), "IP=10.240.0.36"))
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	expect(t, b.add(t, a, request("c")), "10.240.0.36")
	expect(t, b.leases(t), "10.240.0.36 c, 10.240.0.37 b")
}

// TestEmptyReply: one reply without addresses removes no address.
func TestEmptyReply(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36"))
	a := b.handlerFor(t, "")
	if err := a.Status(context.Background(), b.Host, request("")); err != nil {
		t.Fatal(err)
	}
	b.gives(t)
	expect(t, b.add(t, a, request("a")), "10.240.0.36")
}

// TestRequests requests addresses in every supported form, both addresses that the cloud
// reports and others.
func TestRequests(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.4", "10.240.0.36", "10.240.0.37", "10.240.0.64/28"))
	expect(t, b.add(t, b.handlerFor(t, ""), withArgs(t, request("args"), "IP=10.240.0.37")), "10.240.0.37")
	expect(t, b.add(t, b.handlerFor(t, "", `"runtimeConfig": {"ips": ["10.240.0.70/16"]}`), request("runtime")), "10.240.0.70")
	expect(t, b.add(t, b.handlerFor(t, `"ipAddress": "10.240.0.71"`), request("azure")), "10.240.0.71")
	for ask, want := range map[string]string{
		"10.240.0.37": "by container", "10.240.0.99": "is not an address that the cloud gives this node for pods",
		"10.240.0.4": "is not an address that", "10.240.0.1": "is the gateway of 10.240.0.0/16", "10.9.0.1": "is in no range",
	} {
		err := b.addFails(t, b.handlerFor(t, ""), withArgs(t, request("x"), "IP="+ask))
		if strings.Contains(want, "by container") {
			var taken *store.TakenError
			if !errors.As(err, &taken) || taken.Owner.ContainerID != "args" {
				t.Errorf("%s: %v", ask, err)
			}
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ask, err)
		}
	}
	expect(t, b.add(t, b.handlerFor(t, `"requests": {"mode": "prefer"}`), withArgs(t, request("prefer"), "IP=10.240.0.37")), "10.240.0.36")
}

// TestSticky: a pod gets its address again at once. Another pod does not get the
// address within the cool-down.
func TestSticky(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, `"sticky": {"ttl": "10s"}`)
	pod := func(id, name string) *roles.Request {
		return withArgs(t, request(id), "K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name)
	}
	expect(t, b.add(t, a, pod("1", "web")), "10.240.0.36")
	b.del(t, a, "1")
	b.addFails(t, a, withArgs(t, request("x"), "IP=10.240.0.36"))
	expect(t, b.add(t, a, withArgs(t, pod("2", "web"), "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;IP=10.240.0.36")), "10.240.0.36")
	b.del(t, a, "2")
	expect(t, b.add(t, a, pod("2", "web")), "10.240.0.36")
	b.del(t, a, "2")
	expect(t, b.add(t, a, pod("3", "db")), "10.240.0.37")
	b.pass(29 * time.Second)
	b.addFails(t, a, pod("4", "other"))
	b.pass(40 * time.Second)
	expect(t, b.add(t, a, pod("4", "other")), "10.240.0.36")
}

// TestTwoNetworks: all networks of a node share the addresses, so no two assign the same
// address.
func TestTwoNetworks(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, "")
	other := request("a")
	other.Network = "other"
	expect(t, b.add(t, a, request("a")), "10.240.0.36")
	expect(t, b.add(t, a, other), "10.240.0.37")
	err := b.addFails(t, a, request("b"))
	if !strings.Contains(err.Error(), "2 addresses, 2 used") {
		t.Error(err)
	}
	var taken *store.TakenError
	if err := b.addFails(t, a, withArgs(t, request("b"), "IP=10.240.0.37")); !errors.As(err, &taken) || taken.Owner.Network != "other" {
		t.Error(err)
	}
}

// TestOwnAddresses: an address that a link of the host got after the cloud's reply is not
// assigned, with one NIC or several. A request for this address fails.
func TestOwnAddresses(t *testing.T) {
	for name, more := range map[string][]store.CloudNIC{"one NIC": nil, "two NICs": {nic(macB, true, "10.241.0.0/16", "10.241.0.36")}} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.gives(t, append(more, nic(macA, false, "10.240.0.0/16", "10.240.0.36", "10.240.0.37", "10.240.0.38"))...)
			a := b.handlerFor(t, "")
			expect(t, b.add(t, a, request("a")), "10.240.0.36")
			l, err := netlink.LinkByName("nicA")
			if err != nil {
				t.Fatal(err)
			}
			addr, err := netlink.ParseAddr("10.240.0.37/16")
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = netlink.AddrDel(l, addr) })
			if err := b.addFails(t, a, withArgs(t, request("x"), "IP=10.240.0.37")); !strings.Contains(err.Error(), "is not an address that the cloud gives") {
				t.Error(err)
			}
			expect(t, b.add(t, a, request("b")), "10.240.0.38")
			expect(t, b.leases(t), "10.240.0.36 a, 10.240.0.38 b")
		})
	}
}

// TestNICs: only NICs of this host are used, and only the configured one if there is one.
func TestNICs(t *testing.T) {
	b := newBed(t)
	b.gives(t,
		nic(macA, true, "10.240.0.0/16", "10.240.0.36"), nic(macB, false, "10.241.0.0/16", "10.241.0.36"),
		nic("02:00:00:00:00:cc", false, "10.243.0.0/16", "10.243.0.36"))
	for i, c := range []struct{ ipam, more, want string }{
		{`"nic": "nicA"`, "", "10.240.0.36"},
		{`"nic": "02-00-00-00-00-0B"`, "", "10.241.0.36"},
	} {
		expect(t, b.add(t, b.handlerFor(t, c.ipam), request(fmt.Sprint(i))), c.want)
	}
	b.del(t, b.handlerFor(t, ""), "0")
	b.pass(time.Minute)
	expect(t, b.add(t, b.handlerFor(t, "", `"master": "nicA"`), request("master")), "10.240.0.36")
	err := b.addFails(t, b.handlerFor(t, `"nic": "02:00:00:00:00:cc"`), request("x"))
	if !strings.Contains(err.Error(), "no link has the MAC of its NIC 02:00:00:00:00:cc") {
		t.Error(err)
	}
	if err := b.addFails(t, b.handlerFor(t, `"nic": "eth7"`), request("x")); !strings.Contains(err.Error(), "eth7") {
		t.Error(err)
	}
	if err := b.addFails(t, b.handlerFor(t, `"subnet": "10.9.0.0/16"`), request("x")); !errors.Is(err, roles.ErrExhausted) {
		t.Error(err)
	}
}

// TestDualStack: an address of each family, single ones and a /80 (amazon-vpc-cni's
// prefix delegation).
func TestDualStack(t *testing.T) {
	b := newBed(t)
	n := nic(macA, true, "10.240.0.0/16", "10.240.0.36")
	n.Subnets = append(n.Subnets, nic("", true, "2001:db8:1::/64", "2001:db8:1:0:aaaa::/80").Subnets...)
	b.gives(t, n)
	r, err := b.handlerFor(t, `"family": "dual"`).Add(context.Background(), b.Host, request("a"))
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, route := range r.Routes {
		routes = append(routes, route.Dst.String()+" "+route.GW.String())
	}
	expect(t, ipsOf(r), "10.240.0.36 2001:db8:1:0:aaaa::")
	if diff := cmp.Diff([]string{"0.0.0.0/0 10.240.0.1", "::/0 2001:db8:1::1"}, routes); diff != "" {
		t.Error(diff)
	}
	if err := b.addFails(t, b.handlerFor(t, `"family": "dual"`), request("b")); !strings.Contains(err.Error(), "pool 10.240.0.0/16") {
		t.Error(err)
	}
	expect(t, b.add(t, b.handlerFor(t, `"family": "ipv6"`), request("c")), "2001:db8:1:0:aaaa::1")
}

// TestPreview: Preview returns what the next ADD returns, and reserves nothing.
func TestPreview(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, "")
	if _, err := a.Preview(context.Background(), b.Host, request("a")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of a cloud that was never queried: %v", err)
	}
	b.add(t, a, request("a"))
	for range 2 {
		r, err := a.Preview(context.Background(), b.Host, request("b"))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, ipsOf(r), "10.240.0.37")
	}
	expect(t, b.leases(t), "10.240.0.36 a")
}

// TestNeverQueried: DEL, CHECK and GC succeed without the cloud's file.
func TestNeverQueried(t *testing.T) {
	b := newBed(t)
	ctx := context.Background()
	a := b.handlerFor(t, "")
	b.del(t, a, "nobody")
	gc := request("")
	gc.Valid = []roles.AttachmentID{}
	if err := a.GC(ctx, b.Host, gc); err != nil {
		t.Error(err)
	}
	check := request("nobody")
	check.PrevResult = &roles.Result{CNIVersion: "1.1.0"}
	if err := a.Check(ctx, b.Host, check); !errors.Is(err, roles.ErrCheck) {
		t.Errorf("CHECK: %v", err)
	}
	if err := a.Status(ctx, b.Host, request("")); !errors.Is(err, roles.ErrNotAvailable) {
		t.Errorf("STATUS: %v", err)
	}
	b.addFails(t, a, request("a"))
}

// TestRepeated: a second ADD fails, GC releases the addresses of attachments that are not
// valid, and these addresses cool down.
func TestRepeated(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36"))
	a := b.handlerFor(t, "")
	a.life.Gone = func(store.Netns) bool { return false }
	b.add(t, a, request("a"))
	if err := b.addFails(t, a, request("a")); !errors.Is(err, roles.ErrAttached) {
		t.Error(err)
	}
	gc := request("")
	gc.Valid = []roles.AttachmentID{}
	if err := a.GC(context.Background(), b.Host, gc); err != nil {
		t.Error(err)
	}
	expect(t, b.leases(t), "")
	if err := b.addFails(t, a, request("b")); !strings.Contains(err.Error(), "1 cooling down") {
		t.Error(err)
	}
	b.pass(time.Minute)
	expect(t, b.add(t, a, request("b")), "10.240.0.36")
}

// TestRebuilt: leases that were rebuilt after the loss of node.db are in the pool, and
// those of another network are not assigned again.
func TestRebuilt(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.35", "10.240.0.36", "10.240.0.37"))
	a := b.handlerFor(t, "")
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		others, err := tx.Pool(store.PoolID{Network: "other"})
		if err != nil {
			return err
		}
		if err := others.Reserve(store.Lease{Address: addrs("10.240.0.35")[0], Owner: store.Key{Network: "other", ContainerID: "o"}}); err != nil {
			return err
		}
		pool, err := tx.Pool(store.PoolID{Network: "net"})
		if err != nil {
			return err
		}
		return pool.Reserve(store.Lease{Address: addrs("10.240.0.36")[0], Owner: request("old").Key(), Netns: attachment.ThisNetns("", nil)})
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, b.add(t, a, request("a")), "10.240.0.37")
	locations, err := attachment.CloudLocations(context.Background(), b.Host, request("old").Key())
	if err != nil || len(locations) != 1 || locations[0].Subnet.Prefix.String() != "10.240.0.0/16" {
		t.Errorf("locations %+v, %v", locations, err)
	}
	b.del(t, a, "old")
	if err := b.addFails(t, a, request("b")); !strings.Contains(err.Error(), "1 cooling down") {
		t.Error(err)
	}
}

// TestPlanVerb: the verb plan prints what ADD would assign for a configuration's file.
func TestPlanVerb(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37"))
	file := filepath.Join(b.dir, "net.conflist")
	list := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "routed", "ipam": {"type": "cloud-ipam", "provider": "file", "file": %q}}]}`,
		filepath.Join(b.dir, "nics.json"))
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{"container": "plan", "ifname": "eth0", "ip": "10.240.0.37"}
	plan := planVerb()
	if _, err := plan.Run(context.Background(), b.Host, flags, []string{file}); err == nil || !strings.Contains(err.Error(), "cloud refresh") {
		t.Errorf("of a cloud that was never queried: %v", err)
	}
	b.add(t, b.handlerFor(t, ""), request("a"))
	for ip, want := range map[string]string{
		"10.240.0.37": "10.240.0.37/16 10.240.0.1 asked for by CNI_ARGS: IP",
		"":            "10.240.0.37/16 10.240.0.1 the next one without a known earlier owner",
	} {
		flags["ip"] = ip
		out, err := plan.Run(context.Background(), b.Host, flags, []string{file})
		if err != nil {
			t.Fatal(err)
		}
		_, rows := out.(*leasing.Forecast).Table()
		expect(t, strings.Join(rows[0], " "), want)
	}
}
