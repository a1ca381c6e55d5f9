package netops

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// nftChildEnv makes TestNFTChild run as a child process. Its value is "race N".
const nftChildEnv = "CNIBOX_TEST_NFT_CHILD"

// nftChild runs this test binary as another process in the test's namespace.
func nftChild(t *testing.T, work string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestNFTChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), nftChildEnv+"="+work)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestNFTChild is the child process of other tests. It prints "ready", waits for
// the end of its input, and adds its elements. An error fails the child.
func TestNFTChild(t *testing.T) {
	work := os.Getenv(nftChildEnv)
	if work == "" {
		return
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	var n int
	if _, err := fmt.Sscanf(work, "race %d", &n); err != nil {
		t.Fatal(err)
	}
	c := openNFT(t, masq("recorded", "cni9", "10.9.0.0/16"))
	for _, e := range raceElements(n) {
		mustAdd(t, c, e)
	}
}

// raceElements returns the elements that process n adds: shared ones and its
// own.
func raceElements(n int) []*nft.Element {
	mac := fmt.Sprintf("02:00:00:00:00:%02x", n)
	return []*nft.Element{
		masq("shared", "cni0", "10.1.0.0/16"),
		pair(fmt.Sprintf("cnibox:%d", n), "veth1", mac),
		masq("shared", "cni0", "10.2.0.0/16"),
	}
}

func TestNFTProcessesRaceToMakeTheBase(t *testing.T) {
	const racers = 16
	nstest.Fresh(t)
	c := openNFT(t)
	for round := range 2 {
		race(t, racers)
		pairs := map[string]string{}
		for n := range racers {
			pairs[fmt.Sprintf("veth1 02:00:00:00:00:%02x", n)] = fmt.Sprintf("cnibox:%d", n)
		}
		wantKeys(t, c, "macguard_pairs", pairs)
		wantKeys(t, c, "masq4", map[string]string{
			"cni0 10.1.0.0/16": "shared", "cni0 10.2.0.0/16": "shared", "cni9 10.9.0.0/16": "recorded",
		})
		rules := nstest.Run(t, "nft", "list", "ruleset")
		for _, rule := range []string{"@masq4 masquerade", "@masq6 masquerade", "@macguard_ports drop", "type nat hook postrouting"} {
			if n := strings.Count(rules, rule); n != 1 {
				t.Errorf("round %d: %d times %q, want once", round, n, rule)
			}
		}
		nstest.Run(t, "nft", "flush", "ruleset")
	}
}

// race starts n child processes and releases them at the same time.
func race(t *testing.T, n int) {
	t.Helper()
	var children []*exec.Cmd
	var gates []interface{ Close() error }
	for i := range n {
		cmd := nftChild(t, fmt.Sprintf("race %d", i))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("child %d: %q, %v", i, line, err)
		}
		children, gates = append(children, cmd), append(gates, in)
	}
	for _, g := range gates {
		_ = g.Close()
	}
	for i, cmd := range children {
		if err := cmd.Wait(); err != nil {
			t.Errorf("child %d: %v", i, err)
		}
	}
}

func TestNFTFlushedRulesetComesBack(t *testing.T) {
	recorded := []*nft.Element{
		masq("one", "cni0", "10.1.0.0/16"), masq("one", "cni0", "10.1.0.0/16"), // of two attachments
		pair("cnibox:a", "veth1", "02:00:00:00:00:01"),
		{Set: "macguard_ports", Key: []string{"veth1"}, Label: "cnibox:a"},
	}
	c := freshNFT(t, recorded...)
	mustAdd(t, c, recorded...)
	before := nstest.Run(t, "nft", "list", "ruleset")
	nstest.Run(t, "nft", "flush", "ruleset")
	mustDel(t, c, pair("", "veth1", "02:00:00:00:00:01")) // absent with its table
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("a delete made:\n%s", got)
	}
	start, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"))
	// Each table was restored in one transaction, so no reader saw a partial
	// table.
	if end, err := c.Generation(t.Context()); err != nil || end-start != 2 {
		t.Errorf("two tables came back in %d transactions, error %v", end-start, err)
	}
	if diff := cmp.Diff(before, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("after a flush and one add (-before +after):\n%s", diff)
	}
}

// TestNFTRestoreThatFails checks that no table is created while the recorded
// elements cannot be read. Without them packets would leave without
// masquerading.
func TestNFTRestoreThatFails(t *testing.T) {
	nstest.Fresh(t)
	broken := errors.New("store is locked")
	c := nft.New(ruleset.Schema, func(context.Context) ([]*nft.Element, error) { return nil, broken })
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Add(t.Context(), []*nft.Element{masq("one", "cni0", "10.1.0.0/16")}); !errors.Is(err, broken) {
		t.Errorf("error %v, want the one of restore", err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("made:\n%s", got)
	}
}

// TestNFTAddsBesideFlushes flushes the ruleset during adds. After a successful
// add, the base and the element must exist, or the flush came after the add.
func TestNFTAddsBesideFlushes(t *testing.T) {
	nstest.Fresh(t)
	flusher := openNFT(t)
	if _, err := flusher.Conn(); err != nil {
		t.Fatal(err)
	}
	worker := openNFT(t, masq("recorded", "cni9", "10.9.0.0/16"))
	if _, err := worker.Conn(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		flushAll := nft.Request(unix.NFT_MSG_DELTABLE, 0, unix.AF_UNSPEC)
		for {
			select {
			case <-done:
				return
			default:
				if err := flusher.Commit(context.WithoutCancel(t.Context()), 0, flushAll); err != nil {
					t.Errorf("flush: %v", err)
					return
				}
			}
		}
	})
	busy := 0
	for i := range 60 {
		e := masq("x", "cni0", fmt.Sprintf("10.%d.%d.0/24", i>>8, i&0xff))
		switch err := worker.Add(t.Context(), []*nft.Element{e}); {
		case errors.Is(err, ErrBusy):
			busy++
		case err != nil:
			t.Fatal(err)
		}
		mustDel(t, worker, e, pair("", "veth1", "02:00:00:00:00:01"))
	}
	close(done)
	flushing.Wait()
	if busy > 30 {
		t.Errorf("%d of 60 adds gave up", busy)
	}
	e := masq("last", "cni0", "10.200.0.0/16")
	mustAdd(t, worker, e)
	keys := keysOf(t, worker, "masq4")
	if keys["cni0 10.200.0.0/16"] != "last" || keys["cni9 10.9.0.0/16"] != "recorded" {
		t.Errorf("after the last flush: %v", keys)
	}
}

// TestNFTRemoveBase checks that the base is removed only while it is empty, and
// that other programs' tables remain.
func TestNFTRemoveBase(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"), pair("cnibox:a", "veth1", "02:00:00:00:00:01"))
	mustDel(t, c, pair("", "veth1", "02:00:00:00:00:01"))
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("table inet cnibox\n", nstest.Run(t, "nft", "list", "tables")); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	wantKeys(t, c, "masq4", map[string]string{"cni0 10.1.0.0/16": "one"})
	mustDel(t, c, masq("", "cni0", "10.1.0.0/16"))
	nstest.Run(t, "nft", "add table inet other; add set inet other s { type ifname; elements = { eth0 } }")
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("table inet other\n", nstest.Run(t, "nft", "list", "tables")); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

// TestNFTRemoveBaseTooLate adds an element between the check for elements and
// the deletion. The table must remain.
func TestNFTRemoveBaseTooLate(t *testing.T) {
	nstest.Fresh(t)
	remover, adder := openNFT(t), openNFT(t)
	mustAdd(t, remover, masq("one", "cni0", "10.1.0.0/16"))
	mustDel(t, remover, masq("one", "cni0", "10.1.0.0/16"))
	tries := 0
	err := remover.Unchanged(t.Context(), func(generation uint32) error {
		tries++
		empty, err := remover.IsEmpty(t.Context(), inetTable())
		if err != nil || empty != (tries == 1) {
			t.Fatalf("try %d: empty %v, error %v", tries, empty, err)
		}
		if !empty {
			return nil
		}
		mustAdd(t, adder, masq("two", "cni1", "10.2.0.0/16"))
		return remover.Commit(t.Context(), generation, inetTable().Message(unix.NFT_MSG_DELTABLE, 0))
	})
	if err != nil || tries != 2 {
		t.Errorf("%d tries, error %v", tries, err)
	}
	wantKeys(t, adder, "masq4", map[string]string{"cni1 10.2.0.0/16": "two"})
}

// TestNFTRemoveBaseBesideAdds adds elements while another client removes empty
// tables. An added element must not be deleted with its table.
func TestNFTRemoveBaseBesideAdds(t *testing.T) {
	nstest.Fresh(t)
	adder, remover := openNFT(t), openNFT(t)
	for _, c := range []*nft.Client{adder, remover} {
		if _, err := c.Conn(); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var removing sync.WaitGroup
	removing.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := remover.RemoveBase(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, ErrBusy) {
					t.Errorf("remove: %v", err)
					return
				}
			}
		}
	})
	e := pair("cnibox:a", "veth1", "02:00:00:00:00:01")
	for i := range 200 {
		mustAdd(t, adder, e)
		if _, found, err := adder.Get(t.Context(), e); !found || err != nil {
			t.Errorf("round %d: found %v, error %v", i, found, err)
			break
		}
		mustDel(t, adder, e)
	}
	close(done)
	removing.Wait()
}
