package process

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListen: only one process listens at a time, and the socket of a killed process is replaced.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	l, unlock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v, want mode 0600", st.Mode(), err)
	}
	if _, _, err := Listen(path); !errors.Is(err, ErrRuns) || !strings.Contains(err.Error(), fmt.Sprintf("a daemon runs already, process %d", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	unlock()
	l, unlock, err = Listen(path)
	if err != nil {
		t.Fatalf("after a dead one: %v", err)
	}
	defer l.Close()
	unlock()
	if _, _, err := Listen(path); err == nil {
		t.Error("took the socket of one that answers")
	}
}

// TestListenMode: the socket's file has its mode from the beginning.
func TestListenMode(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, unlock, err := Listen(filepath.Join(dir, "x.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	defer l.Close()
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the mode was changed after bind: %d bytes of events, %v", n, err)
	}
}

// TestUsage: the usage lists flags with their arguments and defaults.
func TestUsage(t *testing.T) {
	f := flag.NewFlagSet("x", flag.ContinueOnError)
	f.String("at", "/run/x", "`path` to listen on")
	f.Bool("loud", false, "say more")
	if got, want := Usage(f), "\n  -at PATH: path to listen on (/run/x)\n  -loud: say more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(Help("x"), flag.ErrHelp) {
		t.Error("help is not flag.ErrHelp")
	}
}
