package hostlocal

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// bed is a separate node: a store in a directory of the test, and a log.
type bed struct {
	*roles.Host
	dir string
	log *bytes.Buffer
}

func newBed(tb testing.TB) *bed {
	tb.Helper()
	return newBedIn(tb, tb.TempDir())
}

func newBedIn(tb testing.TB, dir string) *bed {
	tb.Helper()
	var log bytes.Buffer
	return &bed{Host: hostAt(tb, dir, &log), dir: dir, log: &log}
}

func hostAt(tb testing.TB, dir string, log *bytes.Buffer) *roles.Host {
	tb.Helper()
	return &roles.Host{
		Role:  "host-local",
		Store: store.New(storeOptions(tb, dir, "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01")),
		Log:   slog.New(slog.NewTextHandler(log, nil)),
		Now:   time.Now,
	}
}

func storeOptions(tb testing.TB, dir, boot string) store.Options {
	tb.Helper()
	o := store.Options{
		RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"),
		BootID: boot, LockTimeout: time.Minute, Role: "host-local",
		Mirror: func() store.Mirror { return &leasefiles.Mirror{Log: slog.New(slog.DiscardHandler)} },
	}
	for _, d := range []string{o.RunDir, o.StateDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	return o
}

// noLinks is a liveness without the kernel: every container is alive unless a test changes that.
func noLinks() leasing.Liveness {
	l := leasing.NodeLiveness()
	l.Reap = func(context.Context, *roles.Host, string) (int, error) { return 0, nil }
	l.AnyDead = func(context.Context, *roles.Host, string) (bool, error) { return false, nil }
	return l
}

// handlerFor makes a handler from the members of the "ipam" object, with the bed's dataDir.
func (b *bed) handlerFor(tb testing.TB, ipam string, more ...string) *handler {
	tb.Helper()
	text := b.conf(ipam, more...)
	a, err := newHandler([]byte(text))
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	a.Life = noLinks()
	return a
}

func (b *bed) conf(ipam string, more ...string) string {
	ipam = strings.TrimSuffix(strings.TrimPrefix(ipam, "{"), "}")
	extra := ""
	for _, m := range more {
		extra += ", " + m
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge"%s, "ipam": {"type": "host-local", "dataDir": %q, %s}}`,
		extra, b.dataDir(), ipam)
}

func (b *bed) dataDir() string { return filepath.Join(b.dir, "networks") }

func request1(id string) *roles.Request { return requestFor(id, "eth0") }

func requestFor(id, ifName string) *roles.Request {
	return &roles.Request{ContainerID: id, IfName: ifName, Network: "net", Netns: "/no/such/netns", CNIVersion: "1.1.0"}
}

// checkRequest returns a request with an empty prevResult.
func checkRequest(id string) *roles.Request {
	req := request1(id)
	req.PrevResult = &roles.Result{CNIVersion: "1.1.0"}
	return req
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
func (b *bed) add(tb testing.TB, a *handler, req *roles.Request) []string {
	tb.Helper()
	r, err := a.Add(context.Background(), b.Host, req)
	if err != nil {
		tb.Fatalf("ADD %s: %v", req.ContainerID, err)
	}
	return ipsOf(r)
}

func (b *bed) addFails(tb testing.TB, a *handler, req *roles.Request) error {
	tb.Helper()
	before := b.leases(tb)
	r, err := a.Add(context.Background(), b.Host, req)
	if err == nil {
		tb.Fatalf("ADD %s: got %v, want an error", req.ContainerID, ipsOf(r))
	}
	if after := b.leases(tb); len(after) != len(before) {
		tb.Fatalf("failed ADD left leases: %v, before %v", after, before)
	}
	return err
}

func (b *bed) del(tb testing.TB, a *handler, req *roles.Request) {
	tb.Helper()
	if err := a.Del(context.Background(), b.Host, req); err != nil {
		tb.Fatalf("DEL %s: %v", req.ContainerID, err)
	}
}

func ipsOf(r *roles.Result) []string {
	var out []string
	for _, ip := range r.IPs {
		out = append(out, ip.Address.IP.String())
	}
	return out
}

// leases lists "address id ifname" of every pool.
func (b *bed) leases(tb testing.TB) []string {
	tb.Helper()
	var out []string
	err := b.Store.View(context.Background(), func(tx *store.Tx) error {
		ids, err := tx.Pools()
		if err != nil {
			return err
		}
		for _, id := range ids {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			for l, err := range p.Leases() {
				if err != nil {
					return err
				}
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", l.Address, l.Owner.ContainerID, l.Owner.IfName)))
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func toJSON(tb testing.TB, v any) string {
	tb.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}
