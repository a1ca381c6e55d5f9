package service

import (
	"cmp"
	"context"
	"errors"
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

// Open makes the socket and its lock, unless they are there. When Run has ended it does nothing.
func (s *Server) Open() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.fault = err }()
	old := s.listener
	if s.closed || old != nil && s.hasFile() {
		return nil
	}
	s.unlock()
	s.unlock = func() {}
	l, unlock, err := Listen(s.path)
	if err != nil {
		return err
	}
	s.file, err = os.Lstat(s.path)
	if err != nil {
		unlock()
		return errors.Join(err, l.Close())
	}
	s.listener, s.unlock = l, unlock
	if old == nil {
		return nil
	}
	old.SetUnlinkOnClose(false) // the path belongs to the new socket
	return old.Close()
}

// hasFile reports whether the file is the one that Open made.
func (s *Server) hasFile() bool {
	is, err := os.Lstat(s.path)
	return err == nil && os.SameFile(is, s.file)
}

// Fault returns why the socket is not open, or nil: another program may have deleted its file, and another daemon of this kind may run now.
func (s *Server) Fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// close closes the socket. The lock stays.
func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.listener != nil {
		s.listener.SetUnlinkOnClose(s.hasFile())
		_ = s.listener.Close() // nobody is answered any more
	}
}

// Close closes the socket and releases the lock.
func (s *Server) Close() {
	s.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlock()
}

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
