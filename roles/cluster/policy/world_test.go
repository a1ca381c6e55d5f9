package policy_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// node is a node with an agent's keeper and networks of bridges.
type node struct {
	*rolestest.Env
	t    *testing.T
	host *roles.Host
	dir  string
	// logDenied is the option of the keepers that start.
	logDenied bool
	// sent counts the rounds of floods.
	sent atomic.Int64
}

func bootID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(boot))
}

func newNode(t *testing.T) *node {
	t.Helper()
	// Package net finds out once whether there is IPv6, which a pod without interfaces does not have.
	if c, err := net.ListenUDP("udp", nil); err == nil {
		_ = c.Close()
	}
	n := &node{Env: rolestest.NewEnv(t, all.Table()), t: t}
	n.dir = filepath.Join(n.Dir(), "policy.d")
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n.host = &roles.Host{
		Net: netops.New(netops.Options{}), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
		Store: store.New(store.Options{RunDir: n.RunDir(), StateDir: n.StateDir(), BootID: bootID(), LockTimeout: time.Minute}),
	}
	t.Cleanup(func() {
		_ = control.Stop(context.Background(), n.host)
		_ = n.host.Net.Close()
		_ = exec.Command("ip", "link", "del", "br1").Run()
		_ = exec.Command("ip", "link", "del", "br2").Run()
	})
	return n
}

// start runs the keeper until the returned function is called.
func (n *node) start() (stop func()) {
	n.t.Helper()
	return n.run(&policy.Directory{Path: n.dir, Keep: enforce.KeptPath(n.host.Store), Log: n.host.Log})
}

func (n *node) run(source policy.Source) (stop func()) {
	n.t.Helper()
	_, stop = n.open(source)
	return stop
}

// open runs a keeper until stop is called.
func (n *node) open(source policy.Source) (k *policy.Keeper, stop func()) {
	n.t.Helper()
	own := *n.host
	own.Net = n.host.Net.Clone()
	s, closeSocket, err := service.Start(context.Background(), own.Store.AgentSocket(), own.Log)
	if err != nil {
		n.t.Fatal(err)
	}
	k, err = policy.Open(context.Background(), policy.Options{Host: &own, Server: s, Source: source, LogDenied: n.logDenied})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait(); closeSocket() })
	n.t.Cleanup(stop)
	saved := enforce.SavedPath(n.host.Store)
	await.Until(n.t, func() bool { fi, err := os.Stat(saved); return err == nil && fi.Size() > 0 }, func() string { return "no saved policies" })
	return k, stop
}

// put writes a file of the directory.
func (n *node) put(name, doc string) {
	n.t.Helper()
	temporary := filepath.Join(n.Dir(), name)
	if err := os.WriteFile(temporary, []byte(doc), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(n.dir, name)); err != nil {
		n.t.Fatal(err)
	}
}

// file writes a file for a test, and returns its path.
func (n *node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.Dir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// onlyPort80 allows the pods app=web UDP to port 80 only.
const onlyPort80 = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - ports: [{port: 80, protocol: UDP}]
`

// pod is an attached container, or one that will be.
type pod struct {
	ns   *netopstest.NS
	call rolestest.Call
	// addresses are those of both families.
	addresses [2]netip.Addr
}

// pod returns a pod with the n-th addresses of the network of a bridge: br1 has 10.1.0.0/24.
func (n *node) pod(bridge, host int, labels string) *pod {
	ns := netopstest.New(n.t)
	a4, a6 := fmt.Sprintf("10.%d.0.%d", bridge, host), fmt.Sprintf("fd00:%d::%d", bridge, host)
	return &pod{ns, rolestest.Call{
		Type: "bridge", Verb: "ADD", ID: fmt.Sprintf("p%d-%d", bridge, host), Netns: ns.Path(), IfName: "eth0",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + fmt.Sprintf("p%d-%d", bridge, host) + ";" + enforce.LabelsArg + "=" + labels,
		Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net%d","type":"bridge","bridge":"br%d","isDefaultGateway":true,"ipam":{"type":"static","addresses":[
			{"address":"%s/24"},{"address":"%s/64"}]}}`, bridge, bridge, a4, a6),
	}, [2]netip.Addr{netip.MustParseAddr(a4), netip.MustParseAddr(a6)}}
}

func (n *node) add(p *pod) *pod {
	n.t.Helper()
	n.OK(p.call)
	n.t.Cleanup(func() { _ = exec.Command("ip", "link", "del", p.link()).Run() }) // the kernel removes a namespace's links later
	return p
}

// link returns the name of the pod's interface on the host.
func (p *pod) link() string {
	return attachment.HostLink(store.Key{Network: "net" + p.call.ID[1:2], ContainerID: p.call.ID, IfName: p.call.IfName})
}

func (n *node) del(p *pod) {
	n.t.Helper()
	c := p.call
	c.Verb = "DEL"
	n.OK(c)
}

// sink counts the datagrams that arrive at a port of a pod, by address family.
type sink [2]atomic.Int64

func (n *node) sink(p *pod, port int) (s *sink) {
	n.t.Helper()
	p.ns.Do(n.t, func() (err error) { s, err = n.sinkHere(port); return err })
	return s
}

// sinkHere does it in the namespace of the calling thread.
func (n *node) sinkHere(port int) (*sink, error) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	n.t.Cleanup(func() { _ = c.Close() })
	var s sink
	go func() {
		b := make([]byte, 10)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if from.Addr().Unmap().Is4() {
				s[0].Add(1)
			} else {
				s[1].Add(1)
			}
		}
	}()
	return &s, nil
}

// flood sends datagrams from a pod to two ports of another pod's addresses, until the test ends.
func (n *node) flood(from, to *pod) {
	n.t.Helper()
	from.ns.Do(n.t, func() error { return n.floodFromHere(to) })
}

// floodFromHere does it from the namespace of the calling thread.
func (n *node) floodFromHere(to *pod) error {
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	n.t.Cleanup(func() { close(stop); running.Wait() })
	running.Go(func() {
		defer c.Close()
		for tick := time.NewTicker(100 * time.Microsecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			n.sent.Add(1)
			for _, a := range to.addresses {
				for _, port := range []uint16{81, 80} {
					_, _ = c.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(a, port)) // there may be no route yet
				}
			}
		}
	})
	return nil
}

// more waits until more datagrams of both families have arrived.
func (n *node) more(s *sink, what string) {
	n.t.Helper()
	before := [2]int64{s[0].Load(), s[1].Load()}
	const enough = 200
	await.Until(n.t, func() bool { return s[0].Load() > before[0]+enough && s[1].Load() > before[1]+enough },
		func() string {
			return fmt.Sprintf("%s: %d and %d datagrams arrived", what, s[0].Load()-before[0], s[1].Load()-before[1])
		})
}

func (n *node) none(s *sink, what string) {
	n.t.Helper()
	if a, b := s[0].Load(), s[1].Load(); a+b > 0 {
		n.t.Errorf("%s: %d datagrams of IPv4 and %d of IPv6 arrived that the policy forbids", what, a, b)
	}
}

// stops waits until datagrams of s that were on their way have arrived, and checks that no others arrive. Those of the other sink do.
func (n *node) stops(s, other *sink, what string) {
	n.t.Helper()
	n.more(other, what)
	arrived := [2]int64{s[0].Load(), s[1].Load()}
	n.more(other, what)
	if now := [2]int64{s[0].Load(), s[1].Load()}; now != arrived {
		n.t.Errorf("%s: %d datagrams of IPv4 and %d of IPv6 arrived that the policy forbids", what, now[0]-arrived[0], now[1]-arrived[1])
	}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
