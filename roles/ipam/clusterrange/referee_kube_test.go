//go:build kube

package clusterrange

import (
	"net/http"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/test/kubetest"
)

// TestRefereeKube is TestReferee with a real API server. Its nodes have exactly the rights of the documentation.
func TestRefereeKube(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": kube.DefaultNamespace}})
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "create", "patch"}},
		kubetest.Rule{APIGroups: []string{"whereabouts.cni.cncf.io"}, Resources: []string{"ippools"}, Verbs: []string{"list"}})
	join := func(name string) {
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": name}})
	}
	for i := range 4 {
		join("node-" + strconv.Itoa(i))
	}
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	play(t, s.Kubeconfig(t, s.Address, kubetest.Agent), max(time.Duration(soak)*time.Second, 5*time.Second), func(name string) {
		s.Must(t, http.MethodDelete, "/api/v1/nodes/"+name, "", nil)
		join(name)
	}, nil)
}
