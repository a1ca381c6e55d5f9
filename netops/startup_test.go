package netops

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// strayEnv has the process make threads while its first one is in a namespace.
const strayEnv = "NETOPS_TEST_STRAY"

// seenAtInit is what an init function saw.
var seenAtInit struct {
	within, elsewhere, after, nested bool
	visit                            error
}

func init() { //nolint:gochecknoinits // what is tested
	seen := &seenAtInit
	AtInit(func() int {
		seen.within = startup.isHere()
		answer := make(chan bool)
		go func() { answer <- startup.isHere() }()
		seen.elsewhere = <-answer
		ns, err := newNamespace()
		if err != nil {
			seen.visit = err
			return 0
		}
		defer ns.Close()
		seen.visit = ns.visit(func() error {
			seen.nested = ns.visit(func() error { return nil }) == nil
			if os.Getenv(strayEnv) != "" {
				return makeThreads()
			}
			return nil
		})
		return 0
	})
	seen.after = startup.isHere()
	if os.Getenv(strayEnv) != "" {
		os.Exit(0)
	}
}

// newNamespace opens a namespace that the thread was in for a moment.
func newNamespace() (*Namespace, error) {
	home, err := openHome()
	if err != nil {
		return nil, err
	}
	defer unix.Close(home) //nolint:errcheck // opened for reading
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	ns, err := openNamespace(threadNamespace)
	return ns, errors.Join(err, unix.Setns(home, unix.CLONE_NEWNET))
}

// makeThreads has goroutines block, each with a thread of its own.
func makeThreads() error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	for range 64 {
		go unix.Read(pipe[0], make([]byte, 1)) //nolint:errcheck // never returns
		runtime.Gosched()
	}
	return nil
}

// TestAtInit: only the goroutine that initializes packages is on the startup thread,
// and only while AtInit lasts.
func TestAtInit(t *testing.T) {
	seen := seenAtInit
	switch {
	case !seen.within:
		t.Error("not on the startup thread in an init function")
	case seen.elsewhere:
		t.Error("another goroutine is on the startup thread")
	case seen.after:
		t.Error("on the startup thread after AtInit")
	case seen.visit != nil && !errors.Is(seen.visit, unix.EPERM):
		t.Error(seen.visit)
	case seen.nested:
		t.Error("a visit within a visit")
	}
	AtInit(func() int {
		if startup.lasts.Load() {
			t.Error("what is no init function says that it is one")
		}
		return 0
	})
}

// TestAtInitStray: a process whose startup thread makes threads in another
// namespace ends.
func TestAtInitStray(t *testing.T) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), strayEnv+"=1")
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("ended by %v, not by SIGKILL: %s", err, out)
	}
}

func TestIsInit(t *testing.T) {
	for name, want := range map[string]bool{
		"github.com/cnibox/cnibox/internal/entry.init.0": true,
		"main.init.12":        true,
		"main.init":           false,
		"main.init.0.func1":   false,
		"main.T.init.func1.2": false,
		"main.init.":          false,
		"main.main":           false,
		"init.0":              false,
		"":                    false,
	} {
		if isInit(name) != want {
			t.Errorf("%q: want %t", name, want)
		}
	}
}
