package policy_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild()
	}
	rolestest.Main(m, all.Table())
}

// childEnv makes the test binary a keeper that kills itself: the number of the write, "late" for after it, the run directory, the
// state directory and that of the policies.
const childEnv = "CNIBOX_TEST_KEEPER"

func runChild() {
	var n int
	var late bool
	var run, state, dir string
	if _, err := fmt.Sscan(os.Getenv(childEnv), &n, &late, &run, &state, &dir); err != nil {
		panic(err)
	}
	log := slog.New(slog.DiscardHandler)
	host := &roles.Host{
		Net: netops.New(netops.Options{Probe: &netopstest.KillNth{N: n, Late: late}}), Log: log, Now: time.Now,
		Store: store.New(store.Options{RunDir: run, StateDir: state, BootID: bootID(), LockTimeout: time.Minute}),
	}
	s, _, err := service.Start(context.Background(), host.Store.AgentSocket(), log)
	if err != nil {
		panic(err)
	}
	k, err := policy.Open(context.Background(), policy.Options{Host: host, Server: s, Source: &policy.Directory{Path: dir, Log: log}})
	if err != nil {
		panic(err)
	}
	k.Run(context.Background())
}

// child starts a keeper in a process of its own, which kills itself at a write.
func (n *node) child(write int, late bool) *exec.Cmd {
	n.t.Helper()
	own, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	c := exec.Command(own)
	c.Env = append(os.Environ(), childEnv+"="+fmt.Sprint(write, late, " ", n.RunDir(), " ", n.StateDir(), " ", n.dir))
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// killed runs a keeper that kills itself at a write, until that or until done.
func (n *node) killed(write int, late bool, done func() bool) {
	n.t.Helper()
	c := n.child(write, late)
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	await.Until(n.t, func() bool {
		select {
		case <-ended:
			return true
		default:
			return done()
		}
	}, func() string { return "the keeper neither ended nor finished" })
	_ = c.Process.Kill()
	<-ended
}

// older is a ruleset as of another version: without a set, and the rules that use it.
var older = regexp.MustCompile(`(?m)^\tset pod_dhcp4 \{\n(\t\t.*\n|\t\t\t.*\n)*?\t\}\n|^.*@pod_dhcp4.*\n`)

// TestKilledAgent: the agent is killed before and after each of its writes, while it makes, changes or repairs the rules of a pod
// that a flood reaches from the same bridge and from another network. No forbidden packet arrives, at no time, and the next agent
// brings the rules in force.
func TestKilledAgent(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near, far, web := n.add(n.pod(1, 2, "")), n.add(n.pod(2, 2, "")), n.add(n.pod(1, 3, "app=web"))
	awaitRules(t, "10.1.0.3")
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.flood(far, web)
	second := strings.Replace(onlyPort80, "name: web", "name: second", 1)
	secondIs := func(want bool) func() bool {
		return func() bool {
			out, _ := exec.Command("nft", "list", "table", "inet", "cnibox_policy").Output()
			return strings.Contains(string(out), `"default/second"`) == want && strings.Contains(string(out), "elements = { 10.1.0.3")
		}
	}
	settled := func() bool {
		out, _ := exec.Command("nft", "list", "ruleset").Output()
		text := comment.ReplaceAllString(string(out), "")
		return strings.Contains(text, "10.1.0.3 : goto pods_") && strings.Contains(text, "pod_dhcp4") && strings.Contains(text, "chain to_pod") && strings.Contains(text, "@pod_port6 return")
	}
	file := filepath.Join(n.Dir(), "ruleset")
	load := func(change func(string) string) {
		out, err := exec.Command("nft", "list", "ruleset").Output()
		if err == nil {
			err = os.WriteFile(file, []byte("flush ruleset\n"+change(string(out))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.none(denied, "before the load")
		run(t, "nft -f "+file)
		// While nft replaces the ruleset, the kernel lets a datagram pass in one of a hundred times, also without an agent.
		n.more(allowed, "the loaded rules")
		denied[0].Store(0)
		denied[1].Store(0)
	}
	for name, sc := range map[string]struct {
		prepare func()
		done    func() bool
	}{
		"another version's table": {func() { load(func(s string) string { return older.ReplaceAllString(s, "") }) }, settled},
		"flush table":             {func() { run(t, "nft flush table inet cnibox_policy") }, settled},
		"flush the bridge's":      {func() { run(t, "nft flush table bridge cnibox_policy") }, settled},
		"one more policy":         {func() { n.put("second.yaml", second) }, secondIs(true)},
		"one policy less":         {func() { n.put("second.yaml", second) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			for write := 1; write <= 4; write++ {
				for _, late := range []bool{false, true} {
					stop()
					sc.prepare()
					if sc.done == nil {
						stop = n.start()
						await.Until(t, secondIs(true), func() string { return "no second policy" })
						stop()
						_ = os.Remove(filepath.Join(n.dir, "second.yaml"))
						n.killed(write, late, secondIs(false))
					} else {
						n.killed(write, late, sc.done)
					}
					n.none(denied, fmt.Sprintf("after the death at write %d, late %v", write, late))
					_ = os.Remove(filepath.Join(n.dir, "second.yaml"))
					stop = n.start()
					await.Until(t, func() bool { return settled() && secondIs(false)() }, func() string {
						out, _ := exec.Command("nft", "list", "ruleset").Output()
						return "the rules are not in force: " + string(out)
					})
					n.more(allowed, "the next agent")
					n.none(denied, "with the next agent")
				}
			}
		})
	}
	n.t = t
	stop()
}

// TestKilledADD: an ADD is killed before and after each of its writes, and repeated, while a flood reaches the pod's addresses.
// No forbidden packet arrives.
func TestKilledADD(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	near := n.add(n.pod(1, 2, ""))
	n.flood(near, n.pod(1, 3, ""))
	for write := 1; ; write++ {
		for _, kind := range []string{"net:kill-before", "net:kill-after"} {
			web := n.pod(1, 3, "app=web")
			allowed, denied := n.sink(web, 80), n.sink(web, 81)
			c := web.call
			c.Probe = fmt.Sprintf("%s:%d", kind, write)
			if a := n.Run(c); a.Code == 0 {
				n.more(allowed, "the allowed port")
				n.none(denied, "after ADD")
				return
			}
			n.none(denied, "after the death of ADD")
			n.add(web)
			n.more(allowed, "the allowed port")
			n.none(denied, "after the second ADD")
			n.del(web)
			n.none(denied, "after DEL")
		}
	}
}
