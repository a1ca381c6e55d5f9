package portmap_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

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
