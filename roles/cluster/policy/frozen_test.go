package policy_test

import (
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/test/await"
)

// TestFrozen: the agent is frozen between the two requests of an ADD. The ADD and its DEL go on without it, and another pod gets the address.
// When the agent goes on, it finds the requests of the first pod, and the second one stays filtered.
func TestFrozen(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	runtime.LockOSThread() // the child ends with the thread that made it
	defer runtime.UnlockOSThread()
	agent := n.child(math.MaxInt32, false)
	defer func() { _ = agent.Process.Kill(); _ = agent.Wait() }()
	// answers waits until the agent has answered, also what was asked before.
	answers := func() {
		t.Helper()
		if _, err := control.State(t.Context(), n.host.Store); err != nil {
			t.Fatal(err)
		}
	}
	// known waits until the agent has read the records of its pods.
	known := func() {
		t.Helper()
		await.Until(t, func() bool {
			s, err := control.State(t.Context(), n.host.Store)
			if err != nil {
				return false
			}
			for i := range s.Local {
				if s.Local[i].Pending {
					return false
				}
			}
			return true
		}, func() string { return "the agent does not know its pods" })
	}
	known()
	near := n.add(n.pod(1, 2, ""))
	n.add(n.pod(1, 9, "app=web")) // so that the kernel has the chains
	known()
	const first = `"label":"cnibox:c1","namespace":"default","name":"c1","labels":{"app":"web"},"addresses":["10.1.0.3","fd00:1::3"]`
	n.answered(service.PolicyChoose, "{"+first+"}", "ingress")
	answers() // so it does not hold the lock of the records
	_ = agent.Process.Signal(syscall.SIGSTOP)
	await.Until(t, func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", agent.Process.Pid))
		return strings.Contains(string(stat), ") T ")
	}, func() string { return "the agent is not frozen" })
	for _, name := range []string{service.PolicyAdd, service.PolicyDel} {
		if a := n.ask(name, "{"+first+"}", enforce.ChangeTime); a != "" {
			t.Fatal(a)
		}
	}
	second := n.pod(1, 3, "app=web")
	second.call.ID = "p1-3b"
	n.add(second)
	denied, allowed := n.sink(second, 81), n.sink(second, 80)
	n.flood(near, second)
	n.more(allowed, "while the agent is frozen")
	n.none(denied, "while the agent is frozen")
	_ = agent.Process.Signal(syscall.SIGCONT)
	answers()
	n.more(allowed, "after the agent goes on")
	n.none(denied, "after the agent goes on")
}

// ask sends a request to the agent as ADD and DEL do, and returns its answer, or "" if there is none within a time.
func (n *node) ask(name, args string, within time.Duration) string {
	n.t.Helper()
	c, err := net.Dial("unix", n.host.Store.AgentSocket())
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within))
	_, _ = fmt.Fprintf(c, `{"ask":%q,"args":%s}`+"\n", name, args)
	b := make([]byte, 1000)
	count, _ := c.Read(b)
	return string(b[:count])
}

// answered asks until the agent answers in time, with a text.
func (n *node) answered(name, args, text string) {
	n.t.Helper()
	a := ""
	await.Until(n.t, func() bool {
		a = n.ask(name, args, enforce.AskTime)
		return strings.Contains(a, text)
	}, func() string { return fmt.Sprintf("%s %s: %q", name, args, a) })
}

// TestUnheardDel: an ADD has let the agent add the elements and was undone, and the agent did not hear of its DEL. It deletes the elements when it
// has read the records, long before an ADD that did not record yet counts as dead.
func TestUnheardDel(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	const pod = `"label":"cnibox:c1","namespace":"default","name":"c1","labels":{"app":"web"},"addresses":["10.1.0.3"]`
	n.answered(service.PolicyChoose, "{"+pod+"}", "ingress")
	n.answered(service.PolicyAdd, "{"+pod+"}", `{"end":true}`)
	for end := time.Now().Add(time.Minute); strings.Contains(ruleset(t), "10.1.0.3"); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the agent keeps the elements of a pod without a record")
		}
	}
}

// TestBadRequests: what the kernel would refuse is not taken, so that it does not stop the changes of other pods.
func TestBadRequests(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	for _, args := range []string{
		"1", "null", "{}", `{"label":"cnibox:x","addresses":[""]}`, `{"label":"cnibox:x","addresses":["fe80::1%eth0"]}`,
		`{"label":"expected default/web","addresses":["10.1.0.7"]}`, `{"label":"","addresses":["10.1.0.3"]}`,
		`{"label":"cnibox:x","addresses":["10.1.0.7"],"port":"a-name-that-is-too-long","bridge":"br1"}`,
	} {
		for _, name := range []string{service.PolicyChoose, service.PolicyAdd, service.PolicyDel} {
			if a := n.ask(name, args, enforce.AskTime); !strings.Contains(a, `"error"`) {
				t.Errorf("%s %s: %q", name, args, a)
			}
		}
	}
	p := n.add(n.pod(1, 3, "app=web"))
	if !strings.Contains(ruleset(t), "10.1.0.3") {
		t.Error("a pod has no elements after bad requests")
	}
	n.del(p)
}
