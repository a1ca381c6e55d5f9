package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

func TestMain(m *testing.M) { rolestest.Main(m, tabletest.Of(Role())) }

// The NICs of the tests' node: links nicA and nicB.
const macA, macB = "02:00:00:00:00:0a", "02:00:00:00:00:0b"

// makeNICs makes the node's links if they do not exist. nicA has the address that the
// cloud assigned to the node itself.
func makeNICs(tb testing.TB) {
	tb.Helper()
	if _, err := netlink.LinkByName("nicA"); err == nil {
		return
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "nicA"
	attrs.HardwareAddr, _ = net.ParseMAC(macA)
	peer, _ := net.ParseMAC(macB)
	l := &netlink.Veth{LinkAttrs: attrs, PeerName: "nicB", PeerHardwareAddr: peer}
	if err := netlink.LinkAdd(l); err != nil {
		tb.Fatal(err)
	}
	addr, _ := netlink.ParseAddr("10.240.0.4/16")
	if err := netlink.AddrAdd(l, addr); err != nil {
		tb.Fatal(err)
	}
}

// bed is a node whose clock the test sets and whose cloud is a file.
type bed struct {
	*roles.Host
	dir   string
	clock time.Time
	log   bytes.Buffer
}

func newBed(tb testing.TB) *bed {
	tb.Helper()
	makeNICs(tb)
	b := &bed{dir: tb.TempDir(), clock: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	run, state := filepath.Join(b.dir, "run"), filepath.Join(b.dir, "state")
	for _, d := range []string{run, state} {
		if err := os.Mkdir(d, 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	h, done, err := node.Open(context.Background(), node.Options{RunDir: run, StateDir: state, CacheDirs: []string{b.dir}, Role: "cloud-ipam"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(done)
	h.Now = func() time.Time { return b.clock }
	h.Store = store.New(store.Options{RunDir: run, StateDir: state, BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute, Now: h.Now})
	h.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	b.Host = h
	return b
}

func (b *bed) pass(d time.Duration) { b.clock = b.clock.Add(d) }

// gives makes the cloud report these NICs, and makes the next request due.
func (b *bed) gives(tb testing.TB, nics ...store.CloudNIC) {
	tb.Helper()
	raw, err := json.Marshal(nics)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "nics.json"), raw, 0o600); err != nil {
		tb.Fatal(err)
	}
	b.pass(time.Minute)
}

// nic returns a NIC with a subnet whose addresses and prefixes are for pods.
func nic(mac string, primary bool, subnet string, pods ...string) store.CloudNIC {
	p := netip.MustParsePrefix(subnet)
	s := store.CloudSubnet{Prefix: p, Gateway: p.Addr().Next()}
	for _, t := range pods {
		if strings.Contains(t, "/") {
			s.Ranges = append(s.Ranges, netip.MustParsePrefix(t))
		} else {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(t))
		}
	}
	return store.CloudNIC{MAC: mac, Primary: primary, Subnets: []store.CloudSubnet{s}}
}

// handlerFor makes a handler from the members of the "ipam" object.
func (b *bed) handlerFor(tb testing.TB, ipam string, more ...string) *handler {
	tb.Helper()
	if ipam != "" {
		ipam = ", " + ipam
	}
	extra := ""
	for _, m := range more {
		extra += ", " + m
	}
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "routed"%s, "ipam": {"type": "cloud-ipam", "provider": "file", "file": %q%s}}`,
		extra, filepath.Join(b.dir, "nics.json"), ipam)
	a, err := newHandler([]byte(text))
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	a.life.Reap = func(context.Context, *roles.Host, string) (int, error) { return 0, nil }
	a.life.AnyDead = func(context.Context, *roles.Host, string) (bool, error) { return false, nil }
	return a
}

func request(id string) *roles.Request {
	return &roles.Request{ContainerID: id, IfName: "eth0", Network: "net", Netns: "/no/such/netns", CNIVersion: "1.1.0"}
}

func withArgs(tb testing.TB, req *roles.Request, args string) *roles.Request {
	tb.Helper()
	a, err := roles.ParseArgs(args)
	if err != nil {
		tb.Fatal(err)
	}
	req.Args = a
	return req
}

// add returns the addresses of an ADD that must succeed.
func (b *bed) add(tb testing.TB, a *handler, req *roles.Request) string {
	tb.Helper()
	r, err := a.Add(context.Background(), b.Host, req)
	if err != nil {
		tb.Fatalf("ADD %s: %v", req.ContainerID, err)
	}
	return ipsOf(r)
}

func ipsOf(r *roles.Result) string {
	var out []string
	for _, ip := range r.IPs {
		out = append(out, ip.Address.IP.String())
	}
	return strings.Join(out, " ")
}

func (b *bed) addFails(tb testing.TB, a *handler, req *roles.Request) error {
	tb.Helper()
	before := b.leases(tb)
	r, err := a.Add(context.Background(), b.Host, req)
	if err == nil {
		tb.Fatalf("ADD %s: got %s, want an error", req.ContainerID, ipsOf(r))
	}
	if after := b.leases(tb); after != before {
		tb.Fatalf("failed ADD left leases: %s, before %s", after, before)
	}
	return err
}

func (b *bed) del(tb testing.TB, a *handler, id string) {
	tb.Helper()
	if err := a.Del(context.Background(), b.Host, request(id)); err != nil {
		tb.Fatalf("DEL %s: %v", id, err)
	}
}

// leases lists "address container" of every pool.
func (b *bed) leases(tb testing.TB) string {
	tb.Helper()
	var out []string
	err := b.Store.View(context.Background(), func(tx *store.Tx) error {
		d, err := tx.Export()
		for _, p := range d.Pools {
			for _, l := range p.Leases {
				out = append(out, l.Address.String()+" "+l.Owner.ContainerID)
			}
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Join(out, ", ")
}

// expect compares texts.
func expect(tb testing.TB, have, want string) {
	tb.Helper()
	if have != want {
		tb.Errorf("have %q, want %q", have, want)
	}
}
