package netops

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernelError turns an errno in err's chain into the sentinel that it means;
// what says which object was being worked on. Both stay in the chain, so that
// errors.Is finds the sentinel and the errno. A nil err gives nil.
func kernelError(err error, what string) error {
	if err == nil {
		return nil
	}
	meaning := meaningOf(err)
	if meaning == nil || errors.Is(err, meaning) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w (%w)", what, meaning, err)
}

// meaningOf is the sentinel for the errno in err's chain, nil for others.
func meaningOf(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return nil
	}
	switch errno {
	case unix.EEXIST:
		return ErrExists
	case unix.ENOENT, unix.ENODEV, unix.ESRCH:
		return ErrNotExist
	case unix.EPERM, unix.EACCES:
		return ErrPermission
	case unix.EOPNOTSUPP, unix.EAFNOSUPPORT:
		return ErrNotSupported
	case unix.EINVAL, unix.ERANGE:
		return ErrInvalid
	case unix.EBUSY, unix.EAGAIN, unix.ENOBUFS:
		return ErrBusy
	default:
		return nil
	}
}
