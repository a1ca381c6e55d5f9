//go:build kube

package clusterrange

import (
	"net/http"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// TestRefereeKube is TestReferee with a real API server. Its nodes have exactly the rights of the documentation.
func TestRefereeKube(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, kubeconfig := startKube(t)
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	play(t, kubeconfig, max(time.Duration(soak)*time.Second, 5*time.Second), func(name string) {
		s.Must(t, http.MethodDelete, "/api/v1/nodes/"+name, "", nil)
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": name}})
	}, nil, 7)
}
