package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/internal/page"
	"github.com/cnibox/cnibox/test/kubetest"
)

const (
	// podNamespaces are the namespaces with pods of this node.
	podNamespaces = 240
	// localPods are attached on this node.
	localPods = 250
	// smallPods and bigPods are the pods of two namespaces whose labels change. These pods are on other nodes.
	smallPods, bigPods = 250, 20_000
	// addsPerRound and connectsPerRound are made with and without policies in each round.
	addsPerRound, connectsPerRound = 20, 3000
	// alternations are the measurements of connections in a round, of which the shortest counts: other work only delays.
	alternations = 5
	bulkBytes    = 512 << 20
)

const (
	// policyPatience bounds the time until the policies of a starting program are in force.
	policyPatience = 10 * time.Minute
	// settled is the time after a change or a start in which nothing is measured.
	settled = 3 * time.Second
	// stopTime bounds the time in which a program ends.
	stopTime = 10 * time.Second
)

// errLate means that the policies of a program did not come into force.
var errLate = fmt.Errorf("policies are not in force after %s", policyPatience)

// shape is a cluster with policies.
type shape struct {
	name                      string
	pods, policies, labelSets int
	// changes is the number of measured changes of each kind.
	changes int
	// rounds is the number of rounds in which connections and ADDs are measured with policies and without.
	rounds int
	// big is true if there is a namespace with bigPods, and peer if kube-router is measured too.
	big, peer bool
	// quiet is the time in which nothing changes.
	quiet seconds
}

func shapes() []shape {
	return []shape{
		{name: "240 namespaces, each with 10 pods and 20 policies", pods: 2400, policies: 4800, changes: 100, rounds: 3, quiet: 5 * time.Second},
		{name: "3,000 pods, 3,000 policies, 600 label sets", pods: 3000, policies: 3000, labelSets: 600, changes: 100, rounds: 3, peer: true, quiet: 5 * time.Second},
		{name: "100,000 pods, 10,000 policies, of which 200 select pods of this node", pods: 100_000, policies: 10_000, changes: 100, rounds: 2, big: true, quiet: time.Minute},
	}
}

// policed has the measurements of one program on one shape.
type policed struct {
	shape                         shape
	start                         seconds
	policy, label, namespace, big []seconds
	peak                          int     // KiB
	kernel                        int     // KiB, or 0 if it was not measured
	idle                          float64 // of one CPU
	// connect are medians of new connections without policies, and if the first and the last policy allows them. trips are those of round
	// trips on established ones, and bulk is the time in which one carries bulkBytes.
	connect, trips, bulk [3][]seconds
	// add are ADDs without and with policies.
	add [2][]seconds
	// first are the bytes that the program read until its policies were in force, and each those that it read for a change of policy and label.
	first int
	each  [2]int
}

// policyBench has what all shapes share.
type policyBench struct {
	o        options
	dir      string
	pods     []netip.Addr // of localPods
	probe    *prober
	server   *kubetest.Server
	kubeFile string
	// pid is the program that runs.
	pid int
}

// benchPolicies measures network policies and replaces a block of a page.
func benchPolicies(ctx context.Context, o options, dir string) error {
	b := &policyBench{o: o, dir: dir, kubeFile: filepath.Join(dir, "kubeconfig")}
	if err := os.WriteFile(filepath.Join(dir, "net-conf.json"), []byte(`{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`), 0o600); err != nil {
		return err
	}
	if err := b.attach(ctx); err != nil {
		return err
	}
	var ours []policed
	var theirs *policed
	failure := errors.New("it was not built: run 'make bin/kube/kube-router'")
	for i, s := range shapes() {
		if o.shape > 0 && o.shape != i+1 {
			continue
		}
		if o.quick {
			s.changes, s.rounds, s.quiet = 20, min(s.rounds, 1), time.Second
		}
		note("%s", s.name)
		r, err := b.onServer(ctx, s, func() (policed, error) { return b.measureOurs(ctx, s) })
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		ours = append(ours, r)
		if _, err := os.Stat(o.kubeRouter); err != nil || !s.peer || o.shape > 0 {
			continue
		}
		note("kube-router")
		s.changes = 5
		r, err = b.onServer(ctx, s, func() (policed, error) { return b.measureTheirs(ctx, s) })
		if err := command(ctx, "iptables -F", "iptables -X", "ipset destroy"); err != nil {
			return err
		}
		if err != nil {
			note("kube-router: %v", err)
			failure = err
			continue
		}
		theirs = &r
	}
	text := policiesMarkdown(ours, theirs, failure)
	fmt.Print(text)
	if o.shape > 0 {
		return nil
	}
	return page.Replace(o.policies, "policies", text)
}

func localNamespace(i int) string { return fmt.Sprint("n", i%podNamespaces) }

// attach makes the pods of this node by ADD of ptp, and a namespace that has the addresses of pods of other nodes.
func (b *policyBench) attach(ctx context.Context) error {
	for _, name := range []string{"ptp", "host-local"} {
		if err := os.Symlink(b.o.cnibox, filepath.Join(b.dir, name)); err != nil {
			return err
		}
	}
	if err := command(ctx, "mkdir -p /run/netns", "sysctl -q -w net.ipv4.ip_forward=1",
		"ip netns add far", "ip link add far0 up type veth peer name far1 netns far", "ip addr add 192.0.2.1/30 dev far0",
		"ip -n far addr add 192.0.2.2/30 dev far1", "ip -n far link set far1 up", "ip -n far route add default via 192.0.2.1",
		"ip -n far addr add "+address(smallPod).String()+"/32 dev far1", "ip -n far addr add "+address(bigPod).String()+"/32 dev far1",
		"ip route add "+address(smallPod).String()+" dev far0", "ip route add "+address(bigPod).String()+" dev far0"); err != nil {
		return err
	}
	// Connections are tracked in each cluster, with policies and without: kube-proxy has this rule.
	if out, err := exec.CommandContext(ctx, "nft", "add table inet tracked; add chain inet tracked forward { type filter hook forward priority 0; }; add rule inet tracked forward ct state invalid drop").CombinedOutput(); err != nil {
		return fmt.Errorf("track connections: %w: %s", err, out)
	}
	note("%d pods", localPods)
	for i := range localPods {
		name := fmt.Sprint("p", i)
		if err := command(ctx, "ip netns add "+name); err != nil {
			return err
		}
		a, err := b.cni(ctx, "ADD", i, name)
		if err != nil {
			return err
		}
		b.pods = append(b.pods, a)
	}
	for i := range addsPerRound {
		if err := command(ctx, fmt.Sprint("ip netns add p", localPods+i)); err != nil {
			return err
		}
	}
	var err error
	b.probe, err = newProber("p0", "far", b.pods[0])
	return err
}

func (b *policyBench) env() []string {
	return append(os.Environ(), "CNIBOX_RUN_DIR="+filepath.Join(b.dir, "run"), "CNIBOX_STATE_DIR="+filepath.Join(b.dir, "state"))
}

// cni calls ptp for a pod.
func (b *policyBench) cni(ctx context.Context, verb string, i int, name string) (a netip.Addr, err error) {
	c := exec.CommandContext(ctx, filepath.Join(b.dir, "ptp"))
	c.Env = append(b.env(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+name, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/"+name, "CNI_PATH="+b.dir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+localNamespace(i)+";K8S_POD_NAME="+name+";K8S_POD_UID="+name)
	c.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"pods","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.200.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`)
	out, err := c.Output()
	if err != nil {
		return a, fmt.Errorf("%s of %s: %w: %s", verb, name, err, out)
	}
	if verb != "ADD" {
		return a, nil
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return a, fmt.Errorf("ADD of %s: no address in %s", name, out)
	}
	return result.IPs[0].Address.Addr(), nil
}

// onServer starts an API server with the objects of a shape.
func (b *policyBench) onServer(ctx context.Context, s shape, do func() (policed, error)) (r policed, err error) {
	b.server, err = kubetest.Start(kubetest.CurrentEtcd)
	if err != nil {
		return r, err
	}
	defer b.server.Stop()
	if err := os.WriteFile(b.kubeFile, []byte((&kubeServer{Server: b.server}).kubeconfig(b.server.Address)), 0o600); err != nil {
		return r, err
	}
	// Written into etcd, because the API server needs minutes to create so many objects.
	if err := (&etcd{url: b.server.Etcd}).write(ctx, s.objects(b.pods)); err != nil {
		return r, err
	}
	r, err = do()
	r.shape = s
	return r, err
}

// program is a running agent or kube-router.
type program struct {
	*exec.Cmd
	log *os.File
}

// run starts a program in a memory cgroup of its own, in which the kernel counts the objects that the program makes.
func (b *policyBench) run(ctx context.Context, group string, args ...string) (*program, error) {
	_ = os.Mkdir(group, 0o755) // without cgroups nothing is counted
	log, err := os.Create(filepath.Join(b.dir, "program.log"))
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", `echo $$ 2>/dev/null >"$0/cgroup.procs"; exec "$@"`, group}, args...)...)
	c.Env, c.Stdout, c.Stderr = b.env(), log, log
	return &program{c, log}, c.Start()
}

// stop ends a program. kube-router would first finish its work.
func (p *program) stop() {
	_ = p.Process.Signal(unix.SIGTERM)
	late := time.AfterFunc(stopTime, func() { _ = p.Process.Kill() })
	_ = p.Wait()
	late.Stop()
	_ = p.log.Close()
}

// memoryGroup is where run puts a program.
func memoryGroup(name string) string {
	return "/sys/fs/cgroup/memory/bench-policy-" + name + "-" + strconv.Itoa(os.Getpid())
}

// agentArgs returns a command line of the agent.
func (b *policyBench) agentArgs(flags ...string) []string {
	return append([]string{
		b.o.cnibox, "agent", "-kube-subnet-mgr", "-kubeconfig-file", b.kubeFile, "-net-config-path", filepath.Join(b.dir, "net-conf.json"), "-node-name", policyNode, "-iface", "under0",
		"-subnet-file", "", "-overlay-file", filepath.Join(b.dir, "overlay.json"),
	}, flags...)
}

// startOurs starts the agent and waits until its policies are in force.
func (b *policyBench) startOurs(ctx context.Context, group string) (*program, seconds, error) {
	return b.start(ctx, group, b.agentArgs("-policy")...)
}

// startPlain ends the enforcement of policies, starts the agent without, and waits until it is ready.
func (b *policyBench) startPlain(ctx context.Context, group string) (*program, error) {
	off := exec.CommandContext(ctx, b.o.cnibox, "policy", "off")
	off.Env = b.env()
	if out, err := off.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cnibox policy off: %w: %s", err, out)
	}
	p, err := b.run(ctx, group, b.agentArgs()...)
	if err != nil {
		return nil, err
	}
	for begun := time.Now(); ; <-time.After(20 * time.Millisecond) {
		var file handOff
		text, _ := os.ReadFile(filepath.Join(b.dir, "overlay.json"))
		if json.Unmarshal(text, &file) == nil && file.Ready && b.probe.passes(address(smallPod), closedPort) {
			return p, nil
		}
		if time.Since(begun) > policyPatience {
			p.stop()
			return nil, errors.New("an agent without policies is not ready")
		}
	}
}

// start starts a program and waits until a forbidden datagram does not arrive.
func (b *policyBench) start(ctx context.Context, group string, args ...string) (*program, seconds, error) {
	begun := time.Now()
	p, err := b.run(ctx, group, args...)
	if err != nil {
		return nil, 0, err
	}
	b.pid = p.Process.Pid
	for b.probe.passes(address(smallPod), closedPort) || !b.probe.passes(address(smallPod), 7002) {
		if time.Since(begun) > policyPatience {
			text, _ := os.ReadFile(p.log.Name())
			p.stop()
			note("%s: %s", args[0], text[max(0, len(text)-2000):])
			return nil, 0, errLate
		}
		<-time.After(20 * time.Millisecond)
	}
	note("in force after %s", time.Since(begun))
	return p, time.Since(begun), nil
}

// measureOurs measures the agent.
func (b *policyBench) measureOurs(ctx context.Context, s shape) (r policed, err error) {
	group := memoryGroup("cnibox" + strconv.Itoa(s.pods))
	p, start, err := b.startOurs(ctx, group)
	if err != nil {
		return r, err
	}
	r.start, r.first = start, bytesRead(b.pid)
	defer func() { // of the last one
		if p != nil {
			p.stop()
		}
	}()
	if err := b.changes(ctx, s, &r); err != nil {
		return r, err
	}
	<-time.After(settled)
	a := &agent{cmd: p.Cmd}
	before := a.ticks()
	<-time.After(s.quiet)
	const ticksPerSecond = 100 // USER_HZ
	r.idle = float64(a.ticks()-before) / ticksPerSecond / s.quiet.Seconds()
	r.peak = memory(p.Process.Pid, "VmHWM")
	r.kernel = kernelMemory(group)
	for round := range s.rounds {
		note("round %d", round)
		if err := b.round(ctx, &r, true); err != nil {
			return r, err
		}
		p.stop()
		if p, err = b.startPlain(ctx, group); err != nil {
			return r, err
		}
		if err := b.round(ctx, &r, false); err != nil {
			return r, err
		}
		p.stop()
		if p, _, err = b.startOurs(ctx, group); err != nil {
			return r, err
		}
	}
	p.stop()
	p, err = b.startPlain(ctx, group)
	return r, err
}

// round measures connections and ADDs with or without policies.
func (b *policyBench) round(ctx context.Context, r *policed, policies bool) error {
	<-time.After(settled)
	ports, kind := []int{firstPort}, 0
	if policies {
		ports, kind = append(ports, lastPort), 1
	}
	for range alternations {
		for i, port := range ports {
			for measure, into := range map[*[3][]seconds]func(string, netip.Addr, int) (seconds, error){&r.connect: connects, &r.trips: trips, &r.bulk: bulk} {
				took, err := into("p240", b.pods[0], port)
				if err != nil {
					return err
				}
				measure[kind+i] = append(measure[kind+i], took)
			}
		}
	}
	for i := range addsPerRound {
		i += localPods
		name := fmt.Sprint("p", i)
		begun := time.Now()
		if _, err := b.cni(ctx, "ADD", i, name); err != nil {
			return err
		}
		r.add[kind] = append(r.add[kind], time.Since(begun))
		if _, err := b.cni(ctx, "DEL", i, name); err != nil {
			return err
		}
	}
	return nil
}

// measureTheirs measures kube-router.
func (b *policyBench) measureTheirs(ctx context.Context, s shape) (r policed, err error) {
	group := memoryGroup("kube-router")
	without, err := connects("p240", b.pods[0], firstPort)
	if err != nil {
		return r, err
	}
	p, start, err := b.start(ctx, group, b.o.kubeRouter, "--kubeconfig", b.kubeFile, "--hostname-override", policyNode)
	if err != nil {
		return r, err
	}
	defer p.stop()
	r.start = start
	if err := b.changes(ctx, s, &r); err != nil {
		return r, fmt.Errorf("its policies were in force after %s, and then: %w", ms(start), err)
	}
	r.connect[0] = []seconds{without}
	for i, port := range []int{firstPort, lastPort} {
		took, err := connects("p240", b.pods[0], port)
		if err != nil {
			return r, err
		}
		r.connect[i+1] = []seconds{took}
	}
	r.peak = memory(p.Process.Pid, "VmHWM")
	return r, nil
}

// bytesRead returns what a process has read, from its connections and from files, or 0.
func bytesRead(pid int) (n int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, _ = fmt.Sscanf(string(text), "rchar: %d", &n)
	return n
}

// kernelMemory returns what the kernel holds for a cgroup in KiB, or 0 without cgroups of version 1.
func kernelMemory(group string) int {
	b, _ := os.ReadFile(filepath.Join(group, "memory.kmem.usage_in_bytes"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n >> 10
}

// changes measures changes of a policy, of a pod's label, and of namespaces' labels, until the first allowed datagram arrives.
func (b *policyBench) changes(ctx context.Context, s shape, r *policed) error {
	kinds := []struct {
		path, selector string
		from           int
		ports          [2]int
		patch          [2]string
		changes        int
		into           *[]seconds
	}{
		{"/apis/networking.k8s.io/v1/namespaces/n0/networkpolicies", "zz-probe", smallPod, policyPorts(), [2]string{probeSpec(0), probeSpec(1)}, s.changes, &r.policy},
		{"/api/v1/namespaces/small/pods", fmt.Sprint("p", smallPod), smallPod, [2]int{7002, 7003}, [2]string{`{"metadata":{"labels":{"role":"a"}}}`, `{"metadata":{"labels":{"role":"b"}}}`}, s.changes, &r.label},
		{"/api/v1/namespaces", "small", smallPod, [2]int{7004, 7005}, [2]string{`{"metadata":{"labels":{"zone":"a"}}}`, `{"metadata":{"labels":{"zone":"b"}}}`}, s.changes, &r.namespace},
		{"/api/v1/namespaces", "big", bigPod, [2]int{7004, 7005}, [2]string{`{"metadata":{"labels":{"zone":"a"}}}`, `{"metadata":{"labels":{"zone":"b"}}}`}, 10, &r.big},
	}
	for i, k := range kinds {
		if i == 3 && !s.big {
			continue
		}
		note("changes of %s", k.path)
		events, stop, err := b.watch(ctx, k.path, k.selector)
		if err != nil {
			return err
		}
		before := bytesRead(b.pid)
		for n := range k.changes {
			now := (n + 1) % 2 // the objects begin with 0
			took, err := b.probe.measure(address(k.from), k.ports[now], func() (time.Time, error) {
				out, err := b.server.Do(http.MethodPatch, k.path+"/"+k.selector, "application/merge-patch+json", json.RawMessage(k.patch[now]))
				if err != nil {
					return time.Time{}, err
				}
				var have watched
				if err := json.Unmarshal(out, &have.Object); err != nil {
					return time.Time{}, err
				}
				for {
					select {
					case e := <-events:
						if e.Object.Metadata.ResourceVersion == have.Object.Metadata.ResourceVersion {
							return e.at, nil
						}
					case <-time.After(patience):
						return time.Time{}, errors.New("the change does not arrive")
					}
				}
			})
			if err != nil {
				stop()
				return fmt.Errorf("change %d of %s %s: %w", n, k.path, k.selector, err)
			}
			*k.into = append(*k.into, took)
		}
		if i < len(r.each) {
			r.each[i] = (bytesRead(b.pid) - before) / k.changes
		}
		stop()
		note("p50 %s, p99 %s", median(*k.into), quantile(*k.into, 0.99))
	}
	return nil
}

// watched is an event of a watch, and when it arrived.
type watched struct {
	Object struct {
		Metadata struct {
			ResourceVersion string
		}
	}
	at time.Time
}

// watch follows one object, as the agent does.
func (b *policyBench) watch(ctx context.Context, path, name string) (<-chan watched, func(), error) {
	ctx, stop := context.WithCancel(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.server.Address+path+"?watch=1&fieldSelector=metadata.name="+name, nil)
	if err != nil {
		stop()
		return nil, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+kubetest.Admin)
	resp, err := insecure().Do(r)
	if err != nil {
		stop()
		return nil, nil, err
	}
	events := make(chan watched, 1000)
	go func() {
		defer resp.Body.Close()
		var text []byte
		part := make([]byte, 64<<10)
		for {
			n, err := resp.Body.Read(part)
			at := time.Now()
			text = append(text, part[:n]...)
			for {
				line, rest, whole := bytes.Cut(text, []byte("\n"))
				if !whole {
					break
				}
				e := watched{at: at}
				if json.Unmarshal(line, &e) == nil {
					events <- e
				}
				text = rest
			}
			if err != nil || errors.Is(err, io.EOF) {
				return
			}
		}
	}()
	return events, stop, nil
}
