package nlconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// The sentinel errors for the kernel's error numbers. Other netops code returns
// the same errors.
var (
	// ErrNotExist means that a link, address, route, table or namespace is absent.
	ErrNotExist = errors.New("does not exist")
	// ErrExists means that an object exists already and does not belong to
	// cnibox.
	ErrExists = errors.New("exists already")
	// ErrConflict means that an object of another program prevents the change,
	// for example a link with the bridge's name that is not a bridge, or a
	// different address on the gateway interface.
	ErrConflict = errors.New("conflicts with what is there")
	// ErrNoNetns means that a path is not a network namespace or does not exist.
	ErrNoNetns = errors.New("no such network namespace")
	// ErrNotSupported means that this kernel lacks the feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrPermission means that the process lacks a permission: CAP_NET_ADMIN, or
	// write access to /proc/sys.
	ErrPermission = errors.New("not permitted")
	// ErrInvalid means that the kernel refused a value (EINVAL, ERANGE).
	ErrInvalid = errors.New("invalid value")
	// ErrBusy means that the caller should try again (EBUSY, EAGAIN), or that memory or
	// file descriptors are short (ENOBUFS, ENOMEM, EMFILE, ENFILE).
	ErrBusy = errors.New("busy")
	// ErrUnknown is the result of a request whose answer did not arrive.
	ErrUnknown = errors.New("no answer from the kernel")
	// ErrInterrupted means that a dump was inconsistent (NLM_F_DUMP_INTR). The
	// caller should try again.
	ErrInterrupted = errors.New("interrupted by a change")
	// ErrDamaged means that an answer of the kernel does not have the expected
	// form.
	ErrDamaged = errors.New("unexpected answer of the kernel")
)

// Explain adds the sentinel error for the errno in err's chain. The text what
// names the object. Both stay in the chain: errors.Is finds the sentinel and the
// errno. A nil err returns nil.
func Explain(err error, what string) error {
	if err == nil {
		return nil
	}
	meaning := meaningOf(err)
	if meaning == nil || errors.Is(err, meaning) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w (%w)", what, meaning, err)
}

// meaningOf returns the sentinel error for the errno in err's chain, or nil.
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
	case unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT:
		return ErrNotSupported
	case unix.EINVAL, unix.ERANGE:
		return ErrInvalid
	case unix.EBUSY, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return ErrBusy
	default:
		return nil
	}
}

// IsAbsent reports whether the kernel refused a request because the object is
// absent.
func IsAbsent(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, ErrNotExist)
}

// errnoOf reads the error number at the start of NLMSG_ERROR and NLMSG_DONE. It
// returns nil for 0.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
		return syscall.Errno(-code)
	}
	return nil
}

// refusal returns the error of NLMSG_ERROR or NLMSG_DONE, with the kernel's error
// text if there is one. It returns nil for success.
func refusal(h unix.NlMsghdr, data []byte) error {
	err := errnoOf(data)
	if err == nil || h.Type != unix.NLMSG_ERROR || h.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	start := 4 + unix.SizeofNlMsghdr
	if h.Flags&unix.NLM_F_CAPPED == 0 || len(data) < start {
		return err
	}
	reason, _ := Find(data[start:], unix.NLMSGERR_ATTR_MSG)
	if len(reason) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, Text(reason))
}
