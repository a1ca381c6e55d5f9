package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// The first ADD asks the cloud; the second one, within the interval, uses the recorded answer.
func TestAskingCall(t *testing.T) {
	clustertest.Loopback(t)
	const interfaces = `<Interfaces><Interface MacAddress="000D3A51C490" IsPrimary="true"><IPSubnet Prefix="10.240.0.0/16">` +
		`<IPAddress Address="10.240.0.35" IsPrimary="true"/><IPAddress Address="10.240.0.36" IsPrimary="false"/><IPAddress Address="10.240.0.37" IsPrimary="false"/>` +
		`</IPSubnet></Interface></Interfaces>`
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, interfaces)
	}))
	defer srv.Close()
	dir := t.TempDir()
	for i, want := range []string{"10.240.0.36/16", "10.240.0.37/16"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "azure-vnet-ipam"))
		cmd.Env = append(os.Environ(), "CNIBOX_RUN_DIR="+filepath.Join(dir, "run"), "CNIBOX_STATE_DIR="+filepath.Join(dir, "state"),
			"CNI_COMMAND=ADD", fmt.Sprint("CNI_CONTAINERID=c", i), "CNI_NETNS=/no/such/netns", "CNI_IFNAME=eth0", "CNI_PATH="+binDir)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "azure", "ipam": {"type": "azure-vnet-ipam", "url": %q, "queryInterval": "1h"}}`, srv.URL))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s%s", err, out, &stderr)
		}
		var result struct {
			IPs []struct{ Address string }
		}
		if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 || result.IPs[0].Address != want {
			t.Errorf("%s, want %s: %v", out, want, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the cloud was asked %d times", n)
	}
}

// A DEL without a DHCP daemon succeeds when nothing is recorded, and removes the recorded lease when there is one.
func TestDHCPWithoutDaemon(t *testing.T) {
	dir := t.TempDir()
	conf := []byte(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lan", "ipam": {"type": "dhcp", "daemonSocketPath": %q}}`, filepath.Join(dir, "sock")))
	h, done, err := node.Open(t.Context(), node.Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Role: "test", Log: slog.New(slog.DiscardHandler), Reference: migrate.ReferencePlugins{}})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	key := store.Key{Network: "lan", ContainerID: "leased", IfName: "eth0"}
	err = h.Store.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
		return tx.PutDHCPLease(&store.DHCPLease{
			Owner: key, Netns: store.Netns{Path: filepath.Join(dir, "gone")}, BootID: h.Store.BootID(), Socket: filepath.Join(dir, "sock"), Identity: "x", Conf: conf,
			Grants: []store.DHCPGrant{{Family: "ipv4", Address: netip.MustParsePrefix("10.9.0.10/24"), MAC: "02:00:00:00:00:01", Server: "10.9.0.1"}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"none", "leased"} {
		cmd := exec.CommandContext(t.Context(), "../../../bin/cnibox")
		cmd.Args = []string{"dhcp"}
		cmd.Env = append(os.Environ(), "CNIBOX_RUN_DIR="+filepath.Join(dir, "run"), "CNIBOX_STATE_DIR="+filepath.Join(dir, "state"),
			"CNI_COMMAND=DEL", "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0", "CNI_PATH="+binDir)
		cmd.Stdin = bytes.NewReader(conf)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("%s: %v: %s%s", id, err, out, &stderr)
		}
	}
	err = h.Store.KeepView(t.Context(), func(tx *store.KeepTx) error {
		_, err := tx.DHCPLease(key)
		return err
	})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the lease on record: %v", err)
	}
}
