package netops

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// AtInit runs f, from within the init function that calls it, and returns what it
// returns. While f runs, visits of namespaces cost less than otherwise.
//
// A goroutine that enters a namespace must stay on its thread, and no thread may be
// made by that one: it would begin life in there. runtime.LockOSThread sees to both,
// by starting another thread that makes the threads, which takes a plugin longer
// than its visits. But "all init functions are run on the startup thread" (package
// runtime), and only they are, until they have returned: to the goroutine that is on
// it the first is given. The second is checked after each visit.
//
// Called by anything else than an init function, AtInit just runs f.
func AtInit(f func() int) int {
	var caller [1]uintptr
	if runtime.Callers(2, caller[:]) != 1 || !isInit(runtime.FuncForPC(caller[0]-1).Name()) {
		return f()
	}
	startup.lasts.Store(true)
	defer startup.end()
	return f()
}

// isInit tells whether a function's full name is an init function's: path.init.0, or
// with a higher number. No other function has such a name, nor can it be called.
func isInit(name string) bool {
	i := strings.LastIndexByte(name, '.')
	return i > 0 && strings.HasSuffix(name[:i], ".init") && i+1 < len(name) && strings.Trim(name[i+1:], "0123456789") == ""
}

// startup is the process's first thread while an init function runs AtInit.
var startup startupThread //nolint:gochecknoglobals // a process has one

type startupThread struct {
	lasts atomic.Bool
	// The rest is the thread's own: home is its namespace once that was opened, and
	// away tells that it is in another.
	home int
	away bool
}

// isHere tells whether the caller runs on that thread. The order counts: who is on it
// for another reason is so after the end, and then sees that too.
func (t *startupThread) isHere() bool {
	return unix.Gettid() == unix.Getpid() && t.lasts.Load()
}

func (t *startupThread) end() {
	t.lasts.Store(false)
	if t.home != 0 {
		_ = unix.Close(t.home)
		t.home = 0
	}
}

// visit is Namespace.visit on the thread.
func (t *startupThread) visit(ns *Namespace, f func() error) error {
	if t.away {
		return fmt.Errorf("enter namespace %q: in another namespace already", ns.path)
	}
	if t.home == 0 {
		home, err := openHome()
		if err != nil {
			return err
		}
		t.home = home
	}
	t.away = true
	defer func() { t.away = false }()
	before := threads()
	defer func() { // after a panic too: the process may go on to clean up
		if threads() != before && strayed() {
			die()
		}
	}()
	return ns.enter(t.home, f)
}

// threads counts those that the runtime has made.
func threads() int {
	n, _ := runtime.ThreadCreateProfile(nil)
	return n
}

// strayed tells whether a thread of the process is in another network namespace than
// the caller's, or that this cannot be found out. A thread that another one made
// meanwhile, the runtime's monitor for one, is where it belongs.
func strayed() bool {
	const tasks = "/proc/self/task"
	var home unix.Stat_t
	if unix.Stat(threadNamespace, &home) != nil {
		return true
	}
	list, err := os.ReadDir(tasks)
	for _, task := range list {
		var ns unix.Stat_t
		switch err := unix.Stat(tasks+"/"+task.Name()+"/ns/net", &ns); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // it has ended
		case err != nil || ns.Ino != home.Ino || ns.Dev != home.Dev:
			return true
		}
	}
	return err != nil
}
