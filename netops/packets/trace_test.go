package packets_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/packets"
)

// TestTrace: one probe traces a namespace at a time. Its tables are gone after Close.
func TestTrace(t *testing.T) {
	host := netopstest.New(t)
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // the test is over
	ns, err := n.OpenNamespace(host.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	before := host.Snapshot(t)
	flow := packets.Flow{From: netip.MustParseAddr("127.0.0.1"), ID: 40000}
	first, err := packets.OpenTrace(t.Context(), ns, flow)
	if err != nil {
		t.Fatal(err)
	}
	if events, err := first.Read(t.Context()); err != nil || len(events) > 0 {
		t.Errorf("without a packet: %v, %v", events, err)
	}
	// Before Linux 5.12 a table has no owner, and the second trace replaces the first one's.
	if second, err := packets.OpenTrace(t.Context(), ns, flow); err == nil {
		if err := second.Close(t.Context()); err != nil {
			t.Error(err)
		}
	} else if !errors.Is(err, netops.ErrBusy) {
		t.Errorf("second trace: %v", err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if after := host.Snapshot(t); after != before {
		t.Errorf("after the trace:\n%s\nbefore:\n%s", after, before)
	}
}

// TestTraceKilled: a trace whose process was killed does not prevent the next one.
func TestTraceKilled(t *testing.T) {
	const variable = "NETOPS_TEST_TRACE"
	flow := packets.Flow{From: netip.MustParseAddr("127.0.0.1"), ID: 40000}
	open := func(path string) (*packets.Trace, error) {
		n := netops.New(netops.Options{})
		ns, err := n.OpenNamespace(path)
		if err != nil {
			return nil, err
		}
		return packets.OpenTrace(t.Context(), ns, flow)
	}
	if path := os.Getenv(variable); path != "" { // the process to be killed
		if _, err := open(path); err != nil {
			t.Fatal(err)
		}
		fmt.Println("tracing")
		select {}
	}
	host := netopstest.New(t)
	before := host.Snapshot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run", "^TestTraceKilled$")
	cmd.Env = append(os.Environ(), variable+"="+host.Path())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "tracing\n" {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	next, err := open(host.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if after := host.Snapshot(t); after != before {
		t.Errorf("after the trace:\n%s\nbefore:\n%s", after, before)
	}
}
