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
// transactions, and the other one runs meanwhile. Both succeed, and DEL of either leaves the port to the other.
func TestTwoNetworksAtOnce(t *testing.T) {
	w := newTown(t)
	w.chain = bridge
	a := w.run("a")
	second := *a
	second.join("other", strings.NewReplacer("br0", "br1", "10.1.0", "10.2.0").Replace(bridge), "eth1")
	calls := func(verb string) (first, other rolestest.Call) {
		first, other = a.plugin(verb, conf(web)), second.plugin(verb, strings.Replace(conf(web), "ports", "other", 1))
		other.IfName = "eth1"
		return first, other
	}
	for n := 1; ; n++ {
		first, other := calls("ADD")
		first.Probe = fmt.Sprintf("update:stop:%d", n)
		cmd := w.Cmd(first)
		var out strings.Builder
		cmd.Stdout = &out
		must(t, cmd.Start())
		var ws unix.WaitStatus
		_, err := unix.Wait4(cmd.Process.Pid, &ws, unix.WUNTRACED, nil)
		must(t, err)
		if !ws.Stopped() {
			break // the ADD has fewer transactions
		}
		w.OK(other)
		must(t, cmd.Process.Signal(unix.SIGCONT))
		if err := cmd.Wait(); err != nil {
			t.Errorf("ADD that stopped before transaction %d: %v: %s", n, err, &out)
		}
		w.wants("a 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
		first, other = calls("DEL")
		w.OK(other)
		w.OK(first)
	}
}
