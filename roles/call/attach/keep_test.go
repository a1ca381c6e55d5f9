package attach_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestKeepNotRegular: DEL removes the attachment and frees its address if keep.db is not a regular
// file.
func TestKeepNotRegular(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			p := rolestest.NewPod(t, table(), "ptp")
			keys := `,"ipam":{"type":"host-local","sticky":{"key":"pod"},"ranges":[[{"subnet":"10.8.0.0/24"}]]}`
			add, del := p.Call("ADD", keys), p.Call("DEL", keys)
			add.Args = "K8S_POD_NAMESPACE=web;K8S_POD_NAME=pod"
			del.Args = add.Args
			p.OK(add)
			keep := filepath.Join(p.StateDir(), "keep.db")
			_ = os.Remove(keep)
			if err := replace(keep); err != nil {
				t.Fatal(err)
			}
			p.OK(del)
			if state := p.State(); strings.Contains(state, "10.8.0.2") || strings.Contains(state, `"c1"`) {
				t.Errorf("after DEL:\n%s", state)
			}
		})
	}
}
