package portmap_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestTakenAtOnce: many containers request one port at the same moment. One
// gets it, and the errors of all others name that container. With the reference
// each ADD succeeds, and the first rule gets the connections.
func TestTakenAtOnce(t *testing.T) {
	const containers = 8
	w := newTown(t)
	var pods []*pod
	for i := range containers {
		p := w.attached(fmt.Sprintf("c%d", i))
		p.serve()
		pods = append(pods, p)
	}
	answers := make([]rolestest.Answer, containers)
	var all sync.WaitGroup
	for i, p := range pods {
		call := p.plugin("ADD", conf(web))
		all.Go(func() { answers[i] = w.Run(call) })
	}
	all.Wait()
	winner := -1
	for i, a := range answers {
		if a.Code == 0 {
			if winner >= 0 {
				t.Errorf("%s and %s have port 8080", pods[winner].id, pods[i].id)
			}
			winner = i
		}
	}
	if winner < 0 {
		t.Fatalf("no container has the port: %v", answers)
	}
	for i, a := range answers {
		if i != winner && (!strings.Contains(a.Stdout, `"code": 112`) || !strings.Contains(a.Stdout, pods[winner].id)) {
			t.Errorf("%s gets the error %s, want the name of %s", pods[i].id, a.Stdout, pods[winner].id)
		}
	}
	w.wants(pods[winner].id+" 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
	for i := range pods { // DEL of a failed attachment must not remove the port of the other
		if i != winner {
			w.OK(pods[i].plugin("DEL", conf(web)))
		}
	}
	w.wants(pods[winner].id+" 192.0.2.2", w.outside, "udp", "192.0.2.2", "192.0.2.1", 8080)
	w.OK(pods[winner].plugin("DEL", conf(web)))
}

// TestTwoNetworksAtOnce attaches one container to two networks with the same ports, as go-cni does in parallel. One ADD stops before each of its
// transactions, and the other one runs meanwhile. Both succeed, and DEL of either leaves the port to the other. So does a DEL that stops
// while the other network is attached, and one that the other network's ADD does not see.
func TestTwoNetworksAtOnce(t *testing.T) {
	w := newTown(t)
	w.chain = bridge
	a := w.run("a")
	second := *a
	second.join("other", strings.NewReplacer("br0", "br1", "10.1.0", "10.2.0").Replace(bridge), "eth1")
	first := func(verb string) rolestest.Call { return a.plugin(verb, conf(web)) }
	other := func(verb string) rolestest.Call {
		c := second.plugin(verb, strings.Replace(conf(web), "ports", "other", 1))
		c.IfName = "eth1"
		return c
	}
	reached := func(want string) {
		t.Helper()
		w.wants(want, w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
	}
	for n := 1; w.stopsMeanwhile(first("ADD"), n, func() { w.OK(other("ADD")) }); n++ {
		reached("a 192.0.2.2")
		dels := []rolestest.Call{first("DEL"), other("DEL")}
		w.OK(dels[n%2])
		reached("a 192.0.2.2")
		w.OK(dels[1-n%2])
		reached("")
	}
	for n := 1; w.stopsMeanwhile(first("DEL"), n, func() { w.OK(other("ADD")) }); n++ {
		reached("a 192.0.2.2")
		w.OK(other("CHECK"))
		w.OK(other("DEL"))
		reached("")
		w.OK(first("ADD"))
	}
	for n := 1; ; n++ {
		w.OK(first("ADD"))
		stopped := w.stopsMeanwhile(other("ADD"), n, func() { w.OK(first("DEL")) })
		reached("a 192.0.2.2")
		w.OK(other("DEL"))
		if !stopped {
			break
		}
		reached("")
	}
	w.OK(first("DEL"))
	reached("")
	for n := 1; ; n++ { // a DEL that is killed is repeated
		w.OK(first("ADD"))
		w.OK(other("ADD"))
		del := first("DEL")
		del.Probe = fmt.Sprintf("store:kill:%d", n)
		killed := w.Run(del).Code != 0
		w.OK(first("DEL"))
		reached("a 192.0.2.2")
		w.OK(other("DEL"))
		reached("")
		if !killed {
			break
		}
	}
	if have := run(t, "nft", "list", "ruleset"); ofAttachment.MatchString(have) {
		t.Errorf("left\n%s", have)
	}
	if state := w.State(nil); strings.Contains(state, "awaited") {
		t.Errorf("left\n%s", state)
	}
}

// stopsMeanwhile starts a call, stops it before its n-th transaction, and continues it after meanwhile. It reports whether the call had so many
// transactions.
func (w *town) stopsMeanwhile(c rolestest.Call, n int, meanwhile func()) bool {
	w.t.Helper()
	c.Probe = fmt.Sprintf("update:stop:%d", n)
	cmd := w.Cmd(c)
	var out strings.Builder
	cmd.Stdout = &out
	must(w.t, cmd.Start())
	var ws unix.WaitStatus
	_, err := unix.Wait4(cmd.Process.Pid, &ws, unix.WUNTRACED, nil)
	must(w.t, err)
	if !ws.Stopped() {
		if ws.ExitStatus() != 0 {
			w.t.Errorf("%s: %s", c.Verb, &out)
		}
		return false
	}
	meanwhile()
	must(w.t, cmd.Process.Signal(unix.SIGCONT))
	if err := cmd.Wait(); err != nil {
		w.t.Errorf("%s that stopped before transaction %d: %v: %s", c.Verb, n, err, &out)
	}
	return true
}
