//go:build kube

package policy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// TestKubeCold: 250 ADDs at once beside an agent that has never read the policies. Each fails with code 11 until the agent has, and the
// runtime calls again; then it has the chains of its policies. The agent asks the server for no single pod.
func TestKubeCold(t *testing.T) {
	s, client := openServer(t)
	s.Must(t, http.MethodPost, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "", object{
		"metadata": object{"name": "web"}, "spec": object{
			"podSelector": object{"matchLabels": object{"app": "web"}}, "ingress": []any{object{"ports": []any{object{"port": 80}}}},
		},
	})
	n := newNode(t)
	const count, atOnce = 250, 16
	var pods []*pod
	for i := range count {
		p := n.pod(1, 2+i, "")
		p.call.Args = podArgs(p.call.ID, createPod(t, s, p.call.ID, "node-1", object{"app": []string{"web", "other"}[i%2]}, nil))
		pods = append(pods, p)
	}
	if err := os.WriteFile(enforce.SavedPath(n.host.Store), nil, 0o600); err != nil { // an agent has begun to enforce policies
		t.Fatal(err)
	}
	before := singleReads(t, s)
	var refused atomic.Int64
	var running sync.WaitGroup
	waiting := make(chan *pod, count)
	for range atOnce {
		running.Go(func() {
			for p := range waiting {
				a := n.Run(p.call)
				for ; a.Code != 0 && tryAgain(a); a = n.Run(p.call) {
					refused.Add(1)
				}
				if a.Code != 0 {
					t.Errorf("%s: %+v", p.call.ID, a)
				}
			}
		})
	}
	start := time.Now()
	for _, p := range pods {
		waiting <- p
	}
	close(waiting)
	n.run(policy.NewKube(client, "node-1", n.host.Log))
	known := time.Since(start)
	running.Wait()
	t.Logf("%d ADDs, %d at once: the agent knows the policies after %s, all pods are attached after %s; %d calls were refused before",
		count, atOnce, known, time.Since(start), refused.Load())
	if after := singleReads(t, s); after != before {
		t.Errorf("the agent read %d pods one by one", after-before)
	}
	table, err := exec.Command("nft", "list", "map", "inet", "cnibox_policy", "pod_ingress4").Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(table)
	if chains := strings.Count(text, "goto pods_"); chains != count/2 || strings.Contains(text, "goto deny") {
		t.Errorf("%d pods have the policy's chain, want %d:\n%s", chains, count/2, text)
	}
	for _, p := range pods {
		_ = exec.Command("ip", "link", "del", p.link()).Run()
	}
}

// tryAgain reports whether a call failed with the code by which a runtime calls again.
func tryAgain(a rolestest.Answer) bool {
	var e types.Error
	return json.Unmarshal([]byte(a.Stdout), &e) == nil && e.Code == types.ErrTryAgainLater
}

// singleReads returns how many pods clients of the server have read by their names.
func singleReads(t *testing.T, s *kubetest.Server) (sum int) {
	t.Helper()
	for line := range strings.Lines(string(s.Must(t, http.MethodGet, "/metrics", "", nil))) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="pods"`) && strings.Contains(line, `verb="GET"`) {
			fields := strings.Fields(line)
			n, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				t.Fatal(fmt.Errorf("%s: %w", line, err))
			}
			sum += n
		}
	}
	return sum
}
