package policy_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/test/await"
)

// TestSaveAgain: policies that could not be saved are saved when that is possible again, and until then they are in force all the same.
func TestSaveAgain(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	n.add(n.pod(1, 3, "app=web"))
	path := enforce.SavedPath(n.host.Store)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+"/in the way", 0o700); err != nil {
		t.Fatal(err)
	}
	n.put("web.yaml", strings.ReplaceAll(onlyPort80, "port: 80", "port: 81"))
	await.Until(t, func() bool {
		out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").Output()
		return err == nil && bytes.Contains(out, []byte("proto-src 81"))
	}, func() string { return "the policy is not in force" })
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	await.Until(t, func() bool {
		raw, err := os.ReadFile(path)
		return err == nil && bytes.Contains(raw, []byte(`"web"`))
	}, func() string { return "the policies are not saved" })
}
