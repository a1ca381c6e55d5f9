package keeper_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// TestDeleted: after DEL the kernel has no element of the pod, whether the agent deletes it, is absent, or does not answer. While the
// agent answers, DEL itself does not delete: it would wait for the kernel.
func TestDeleted(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	elements := func() int {
		t.Helper()
		out, err := exec.Command("nft", "list", "ruleset").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(out), "10.1.0.3") + strings.Count(string(out), "fd00:1::3")
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
	for _, answer := range []string{"", `{"error":"cannot"}`, "{}"} {
		p := added()
		l, err := net.Listen("unix", enforce.Socket(n.host.Store))
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan string, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 1000)
			count, _ := c.Read(b)
			asked <- string(b[:count])
			if answer != "" {
				_, _ = c.Write([]byte(answer))
				_ = c.Close()
			}
		}()
		if answer == "{}" {
			n.del(p)
			if elements() == 0 {
				t.Error("DEL deleted although the agent answered")
			}
		} else {
			deleted("with the answer "+answer, p)
		}
		if text := <-asked; !strings.HasPrefix(text, `{"delete":true,"label":`) {
			t.Errorf("asked %s", text)
		}
		_ = l.Close()
	}
}
