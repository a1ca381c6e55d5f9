package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/test/internal/page"
	"github.com/cnibox/cnibox/test/kubetest"
)

const (
	// Each node adds its containers one by one, all nodes at once.
	rangeNodes = 10
	rangePods  = 100
	// linkPods is the number of containers of a node that then get an interface, too.
	linkPods = 20
	// rangeTime bounds the time of one side: no ADD begins after it.
	rangeTime = 10 * time.Minute
	// podNetns is a namespace for the containers. An IPAM plugin only checks that it exists.
	podNetns = "/run/netns/pod"
)

// ipam is one side: an IPAM plugin on every node.
type ipam struct {
	program string // named as the plugin's type
	macvlan string // the plugin of this side's interfaces
	ifName  string
	conf    string
	env     func(node int) []string
}

// allocations are the results of all ADDs of a side.
type allocations struct {
	took []seconds // in order, without the ADDs that failed
	all  seconds
	// twice counts addresses that were in use already.
	failed, twice int
	failure       error // the first
}

// benchRanges measures the role range beside whereabouts on one API server and replaces a block of a page.
func benchRanges(ctx context.Context, o options, dir string) error {
	s, err := kubetest.Start(kubetest.CurrentEtcd)
	if err != nil {
		return err
	}
	defer s.Stop()
	lines := []string{"mkdir -p /run/netns", "ip netns add " + filepath.Base(podNetns), "ip link add lan0 up type veth peer name lan1", "ip link set lan1 up"}
	for node := range rangeNodes {
		for pod := range linkPods {
			lines = append(lines, "ip netns add "+podName(node, rangePods+pod))
		}
	}
	if err := command(ctx, lines...); err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte((&kubeServer{Server: s}).kubeconfig(s.Address)), 0o600); err != nil {
		return err
	}
	ours, stop, err := startRangeAgents(ctx, s, o.cnibox, dir, kubeconfig)
	if err != nil {
		return err
	}
	note("%d ADDs on %d nodes: range", rangeNodes*rangePods, rangeNodes)
	a := ours.measure(ctx)
	stop()
	theirs, err := installWhereabouts(ctx, s, o, dir, kubeconfig)
	if err != nil {
		return err
	}
	note("%d ADDs on %d nodes: whereabouts", rangeNodes*rangePods, rangeNodes)
	b := theirs.measure(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, side := range slices.Concat(a[:], b[:]) {
		if len(side.took) == 0 {
			return fmt.Errorf("no ADD succeeded: %w", side.failure)
		}
		if side.failure != nil {
			note("the first failure: %v", side.failure)
		}
	}
	text := rangesMarkdown(a, b)
	fmt.Print(text)
	return page.Replace(o.ranges, "ranges", text)
}

// startRangeAgents starts an agent for each node, as a process with directories of its own.
func startRangeAgents(ctx context.Context, s *kubetest.Server, binary, dir, kubeconfig string) (side ipam, stop func(), err error) {
	if _, err := s.Do(http.MethodPost, "/api/v1/namespaces", "", json.RawMessage(`{"metadata":{"name":"cnibox-ranges"}}`)); err != nil {
		return side, nil, err
	}
	side = ipam{program: filepath.Join(dir, "range"), macvlan: filepath.Join(dir, "macvlan"), ifName: "net1", conf: `"type":"range"`, env: func(node int) []string {
		at := filepath.Join(dir, fmt.Sprint("node-", node))
		return []string{"CNIBOX_RUN_DIR=" + filepath.Join(at, "run"), "CNIBOX_STATE_DIR=" + filepath.Join(at, "state")}
	}}
	var agents []*exec.Cmd
	stop = func() {
		for _, a := range agents {
			_ = a.Process.Signal(unix.SIGTERM)
			_ = a.Wait()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if err := errors.Join(os.Symlink(binary, side.program), os.Symlink(binary, side.macvlan)); err != nil {
		return side, nil, err
	}
	for i := range rangeNodes {
		name := fmt.Sprint("node-", i)
		if _, err := s.Do(http.MethodPost, "/api/v1/nodes", "", json.RawMessage(`{"metadata":{"name":"`+name+`"}}`)); err != nil {
			return side, nil, err
		}
		a := exec.CommandContext(ctx, binary, "agent", "-ranges-only", "-kube-subnet-mgr", "-kubeconfig-file", kubeconfig, "-node-name", name)
		a.Env = append(os.Environ(), side.env(i)...)
		a.Stderr = os.Stderr
		if err := a.Start(); err != nil {
			return side, nil, err
		}
		agents = append(agents, a)
	}
	for i := range rangeNodes {
		socket := filepath.Join(dir, fmt.Sprint("node-", i), "run", "agent.sock")
		if err := repeat(func() error {
			return service.Ask(ctx, socket, service.RangeNotify, nil, nil)
		}); err != nil {
			return side, nil, fmt.Errorf("the agent of node-%d is not ready: %w", i, err)
		}
	}
	return side, stop, nil
}

// installWhereabouts creates the kinds of whereabouts and waits until the server has them. Its settings are in a file, without which
// whereabouts fails.
func installWhereabouts(ctx context.Context, s *kubetest.Server, o options, dir, kubeconfig string) (side ipam, err error) {
	settings := filepath.Join(dir, "whereabouts.conf")
	side = ipam{
		program: filepath.Join(o.whereabouts, "whereabouts"),
		macvlan: filepath.Join(o.reference, "macvlan"),
		ifName:  "net2",
		conf:    `"type":"whereabouts","configuration_path":"` + settings + `"`,
		env:     func(int) []string { return nil },
	}
	if err := os.WriteFile(settings, []byte(`{"kubernetes":{"kubeconfig":"`+kubeconfig+`"}}`), 0o600); err != nil {
		return side, err
	}
	crds, err := filepath.Glob(filepath.Join(o.whereabouts, "whereabouts.cni.cncf.io_*.yaml"))
	if err != nil || len(crds) != 2 {
		return side, fmt.Errorf("find the definitions of whereabouts in %s: %d, not 2: run 'make bin/kube/whereabouts'", o.whereabouts, len(crds))
	}
	for _, file := range crds {
		b, err := os.ReadFile(file)
		if err != nil {
			return side, err
		}
		if _, err := s.Do(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/yaml", b); err != nil {
			return side, err
		}
	}
	for _, kind := range []string{"ippools", "overlappingrangeipreservations"} {
		if err := repeat(func() error {
			_, err := s.Do(http.MethodGet, "/apis/whereabouts.cni.cncf.io/v1alpha1/"+kind, "", nil)
			return errors.Join(err, ctx.Err())
		}); err != nil {
			return side, err
		}
	}
	return side, nil
}

// repeat calls a function until it succeeds.
func repeat(do func() error) error {
	again, late := time.NewTicker(20*time.Millisecond), time.After(patience)
	defer again.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-late:
			return err
		}
	}
}

// measure executes ADD of the IPAM plugin for the containers of all nodes, and then ADD of macvlan with this IPAM for some more.
func (p *ipam) measure(ctx context.Context) (all [2]allocations) {
	used := map[netip.Addr]bool{}
	all[0] = allocate(ctx, used, 0, rangePods, func(node int, pod string) (netip.Addr, error) { return p.add(ctx, p.program, node, pod, podNetns) })
	all[1] = allocate(ctx, used, rangePods, linkPods, func(node int, pod string) (netip.Addr, error) {
		return p.add(ctx, p.macvlan, node, pod, "/run/netns/"+pod)
	})
	return all
}

func podName(node, pod int) string { return fmt.Sprintf("node-%d-pod-%d", node, pod) }

// allocate calls add for n containers of each node from a first number on, and counts the addresses
// that are among the used ones already.
func allocate(ctx context.Context, used map[netip.Addr]bool, first, n int, add func(node int, pod string) (netip.Addr, error)) allocations {
	var a allocations
	var mu sync.Mutex
	var nodes sync.WaitGroup
	start := time.Now()
	for node := range rangeNodes {
		nodes.Go(func() {
			for pod := range n {
				if time.Since(start) > rangeTime || ctx.Err() != nil {
					return
				}
				begun := time.Now()
				address, err := add(node, podName(node, first+pod))
				took := time.Since(begun)
				mu.Lock()
				switch {
				case err != nil:
					a.failed++
					if a.failure == nil {
						a.failure = err
					}
				default:
					if used[address] {
						a.twice++
					}
					used[address] = true
					a.took = append(a.took, took)
				}
				mu.Unlock()
			}
		})
	}
	nodes.Wait()
	a.all = time.Since(start)
	slices.Sort(a.took)
	return a
}

// add executes a plugin for a container.
func (p *ipam) add(ctx context.Context, program string, node int, pod, netns string) (address netip.Addr, err error) {
	c := exec.CommandContext(ctx, program)
	c.Env = append(os.Environ(), p.env(node)...)
	c.Env = append(c.Env, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+pod, "CNI_IFNAME="+p.ifName, "CNI_NETNS="+netns, "CNI_PATH="+filepath.Dir(p.program),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod)
	c.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"lan0","mode":"bridge","ipam":{"range":"10.32.0.0/20",` + p.conf + `}}`)
	out, err := c.Output()
	if err != nil {
		return address, fmt.Errorf("ADD of %s: %w: %s", pod, err, out)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return address, fmt.Errorf("ADD of %s: no address in %s", pod, out)
	}
	return result.IPs[0].Address.Addr(), nil
}

func (a *allocations) quantile(q float64) seconds { return a.took[int(q*float64(len(a.took)-1))] }

func (a *allocations) rate() float64 { return float64(len(a.took)) / a.all.Seconds() }

func rangesMarkdown(ours, theirs [2]allocations) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ADDs over %d nodes in one range, beside whereabouts v0.8.0 in the same run, and then those of macvlan for %d pods with the same IPAM.\n"+
		"`make bench-ranges` measures again. All nodes work at once, each with one ADD at a time, on one machine with %d processors and one kube-apiserver. Measured on %s.\n\n",
		rangeNodes*rangePods, rangeNodes, rangeNodes*linkPods, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	b.WriteString("| | cnibox | whereabouts | ratio |\n|---|---:|---:|---:|\n")
	count := func(what string, of func(allocations) int) {
		fmt.Fprintf(&b, "| %s | %d | %d | |\n", what, of(ours[0])+of(ours[1]), of(theirs[0])+of(theirs[1]))
	}
	count("addresses given", func(a allocations) int { return len(a.took) })
	count("addresses given twice", func(a allocations) int { return a.twice })
	count("ADDs that failed", func(a allocations) int { return a.failed })
	for _, l := range []struct {
		what string
		of   int
		q    float64
	}{{"one ADD of the IPAM plugin, p50", 0, 0.5}, {"p99", 0, 0.99}, {"one ADD of macvlan, p50", 1, 0.5}, {"p99", 1, 0.99}} {
		x, y := ours[l.of].quantile(l.q), theirs[l.of].quantile(l.q)
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f × as fast |\n", l.what, ms(x), ms(y), float64(y)/float64(x))
	}
	for i, what := range []string{"addresses", "pods"} {
		x, y := ours[i].rate(), theirs[i].rate()
		fmt.Fprintf(&b, "| %s per second | %.1f | %.1f | %.0f × as many |\n", what, x, y, x/y)
	}
	b.WriteString("\nAn ADD is a process, from its start until its end. It is not repeated if it fails. With cnibox, the first ADDs of a node wait for a block of the range. With whereabouts,\n" +
		"each ADD waits until it is the leader of the cluster.\n")
	if n := len(theirs[0].took) + theirs[0].failed; n < rangeNodes*rangePods {
		fmt.Fprintf(&b, "whereabouts began no ADD after %s. It had begun %d by then.\n", rangeTime, n)
	}
	return b.String()
}
