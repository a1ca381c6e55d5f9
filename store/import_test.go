package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// importDump is a state with a record of a container in each file.
func importDump(id string) *store.Dump {
	return &store.Dump{
		Attachments: []store.Attachment{{Key: key("net", id), Created: testTime, Updated: testTime}},
		Delegations: []store.Delegation{{
			Owner: key("multi", id), Created: testTime, Updated: testTime,
			Delegates: []store.Delegate{{IfName: "eth0", Name: "net", List: json.RawMessage(`{"name":"net"}`)}},
		}},
	}
}

// importUntilKilled imports, and kills the process at the n-th call of the probe.
func importUntilKilled(runDir, stateDir string, n int) error {
	s := store.New(store.Options{
		RunDir: runDir, StateDir: stateDir, BootID: bootA, LockTimeout: time.Minute,
		Probe: func(string) error {
			if n--; n == 0 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		},
	})
	return s.Import(context.Background(), importDump("new"), true)
}

// stored returns the container of the record in each file.
func stored(t *testing.T, s *store.Store, keepFirst bool) (node, keep string) {
	t.Helper()
	readNode := func() error {
		return s.View(t.Context(), func(tx *store.Tx) error {
			all, err := tx.Attachments("")
			if err == nil && len(all) != 1 {
				err = fmt.Errorf("%d attachments", len(all))
			}
			if err == nil {
				node = all[0].ContainerID
			}
			return err
		})
	}
	readKeep := func() error {
		return s.KeepView(t.Context(), func(tx *store.KeepTx) error {
			all, err := tx.Delegations("")
			if err == nil && len(all) != 1 {
				err = fmt.Errorf("%d delegations", len(all))
			}
			if err == nil {
				keep = all[0].Owner.ContainerID
			}
			return err
		})
	}
	reads := []func() error{readNode, readKeep}
	if keepFirst {
		reads[0], reads[1] = reads[1], reads[0]
	}
	if err := errors.Join(reads[0](), reads[1]()); err != nil {
		t.Fatal(err)
	}
	return node, keep
}

// TestImportKilled kills an import of both files at every step. The next process finds all of it
// or nothing.
func TestImportKilled(t *testing.T) {
	seen := map[string]int{}
	for n := 1; ; n++ {
		runDir, stateDir := t.TempDir(), t.TempDir()
		s := store.New(store.Options{RunDir: runDir, StateDir: stateDir, BootID: bootA, LockTimeout: time.Minute})
		if err := s.Import(t.Context(), importDump("old"), false); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("/proc/self/exe", "child", "import", runDir, stateDir, fmt.Sprint(n))
		out, err := c.CombinedOutput()
		killed := c.ProcessState.Sys().(syscall.WaitStatus).Signaled()
		if err != nil && !killed {
			t.Fatalf("step %d: %v: %s", n, err, out)
		}
		s = store.New(store.Options{RunDir: runDir, StateDir: stateDir, BootID: bootA, LockTimeout: time.Minute})
		node, keep := stored(t, s, n%2 == 0)
		if node != keep {
			t.Errorf("killed at step %d: node.db has %q, keep.db %q", n, node, keep)
		}
		seen[node]++
		if !killed {
			break
		}
		// The next import is not disturbed.
		if err := s.Import(t.Context(), importDump("next"), true); err != nil {
			t.Fatal(err)
		}
		if node, keep := stored(t, s, true); node != "next" || keep != "next" {
			t.Errorf("the import after a kill at step %d: %q, %q", n, node, keep)
		}
	}
	if seen["old"] < 4 || seen["new"] < 4 {
		t.Errorf("the kills were not before and after the decision: %v", seen)
	}
}

// TestImportRefused changes neither file if node.db refuses a record.
func TestImportRefused(t *testing.T) {
	s := newStore(t)
	if err := s.Import(t.Context(), importDump("old"), false); err != nil {
		t.Fatal(err)
	}
	d := importDump("new")
	d.Attachments[0].ContainerID = "\xff"
	if err := s.Import(t.Context(), d, true); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("error %v", err)
	}
	if node, keep := stored(t, s, true); node != "old" || keep != "old" {
		t.Errorf("node.db has %q, keep.db %q", node, keep)
	}
}
