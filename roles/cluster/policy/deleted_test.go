package policy_test

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
)

// TestDeleted: after DEL the kernel has no element of the pod, whether the agent deletes it, is absent, or does not answer. While the
// agent answers, neither DEL nor ADD changes elements: it would wait for the kernel. An answer without "end" is none.
func TestDeleted(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	elements := func() int {
		t.Helper()
		out := ruleset(t)
		return strings.Count(out, "10.1.0.3") + strings.Count(out, "fd00:1::3")
	}
	added := func() *pod {
		t.Helper()
		p := n.add(n.pod(1, 3, "app=web"))
		if elements() == 0 {
			t.Fatal("ADD made no elements")
		}
		return p
	}
	deleted := func(what string, p *pod) {
		t.Helper()
		n.del(p)
		if left := elements(); left > 0 {
			t.Errorf("%s: DEL left %d elements", what, left)
		}
	}
	deleted("with the agent", added())
	p := added()
	stop()
	deleted("without the agent", p)
	// agent answers one request after the other with JSON, or not at all, and returns the requests when it is closed.
	agent := func(answers ...string) (close func() []string) {
		l, unlock, err := service.Listen(n.host.Store.AgentSocket())
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan []string)
		go func() {
			var all []string
			for _, answer := range answers {
				c, err := l.Accept()
				if err != nil {
					break
				}
				line, _ := bufio.NewReader(c).ReadString('\n')
				all = append(all, line)
				if answer != "" {
					_, _ = c.Write([]byte(answer))
					_ = c.Close()
				}
			}
			asked <- all
		}()
		return func() []string {
			unlock()
			_ = l.Close()
			return <-asked
		}
	}
	const done = `{"end":true}`
	for _, answer := range []string{"", `{"error":"cannot"}`, "{}", `{"end":true,"absent":true}`, done} {
		p := added()
		end := agent(answer)
		if answer == done {
			n.del(p)
			if elements() == 0 {
				t.Error("DEL deleted although the agent answered")
			}
		} else {
			deleted("with the answer "+answer, p)
		}
		if asked := end(); len(asked) != 1 || !strings.HasPrefix(asked[0], `{"ask":"policy.del","args":{"label":`) {
			t.Errorf("asked %s", asked)
		}
	}
	for _, answer := range []string{`{"error":"cannot"}`, "{}", done} {
		end := agent(`{"end":true,"data":{"ingress":"deny"}}`, answer)
		p := n.add(n.pod(1, 5, "app=web"))
		asked := end()
		if has := strings.Contains(ruleset(t), "10.1.0.5"); has == (answer == done) {
			t.Errorf("the agent answers %s: ADD added elements: %v", answer, has)
		}
		if len(asked) != 2 || !strings.HasPrefix(asked[1], `{"ask":"policy.add","args":{"label":`) || !strings.Contains(asked[1], `"bridge":"br1"`) {
			t.Errorf("asked %s", asked)
		}
		n.del(p)
	}
}

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
