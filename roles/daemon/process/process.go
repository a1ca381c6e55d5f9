// Package process has what every daemon needs: a socket on which only one process of a node listens,
// the output of -help, and the environment.
package process

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Help is the output of -help, as an error that is flag.ErrHelp.
type Help string

func (h Help) Error() string { return string(h) }

// Is reports whether err is flag.ErrHelp.
func (Help) Is(err error) bool { return err == flag.ErrHelp } //nolint:errorlint // an Is compares as errors.Is does

// Usage returns a line for each flag, with its default.
func Usage(f *flag.FlagSet) string {
	var out strings.Builder
	f.VisitAll(func(one *flag.Flag) {
		value, text := flag.UnquoteUsage(one)
		if value != "" {
			value = " " + strings.ToUpper(value)
		}
		fmt.Fprintf(&out, "\n  -%s%s: %s", one.Name, value, text)
		if one.DefValue != "" && one.DefValue != "false" {
			fmt.Fprintf(&out, " (%s)", one.DefValue)
		}
	})
	return out.String()
}

// Getenv returns the value of a variable of env, or "". If the name is repeated, the first one counts.
func Getenv(env []string, name string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// CheckPaths returns an error for each flag, by name, that is neither empty nor an absolute path.
func CheckPaths(flags map[string]string) (errs []error) {
	for name, path := range flags {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", name, path))
		}
	}
	return errs
}

// ErrRuns means that another process has the lock of a socket.
var ErrRuns = errors.New("a daemon runs already")

// Listen listens on a path to which only root can connect. It removes the socket of a daemon that was
// killed. If a daemon holds the lock file beside the socket, the error names its process. The
// returned function releases the lock.
func Listen(path string) (*net.UnixListener, func(), error) {
	unlock, err := Lock(path + ".lock")
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	l, err := bind(path)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return l, unlock, nil
}

// Lock takes a lock that ends with the process, and writes the process ID into the file.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(lock, 20))
		_ = lock.Close()
		return nil, fmt.Errorf("%w, process %s: stop it first", ErrRuns, strings.TrimSpace(string(pid)))
	}
	if err := errors.Join(lock.Truncate(0), writeAt(lock, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() { _ = lock.Close() }, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// bind replaces a socket that no process listens on. A socket that accepts connections
// belongs to another program.
//
//nolint:contextcheck // bind(2) does not wait
func bind(path string) (*net.UnixListener, error) {
	st, err := os.Lstat(path)
	if err == nil && st.Mode()&os.ModeSocket != 0 {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen on %q: %w", path, unix.EADDRINUSE)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// bind makes the file with the mode of the socket, so that no other user can connect or replace the file before.
	private := func(_, _ string, c syscall.RawConn) (err error) {
		errControl := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return cmp.Or(errControl, err)
	}
	l, err := (&net.ListenConfig{Control: private}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
