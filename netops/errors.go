package netops

import "errors"

var (
	// ErrNotExist means that a link, address, route, table or namespace is absent.
	ErrNotExist = errors.New("does not exist")
	// ErrExists means that an exclusive object exists already and is not ours.
	ErrExists = errors.New("exists already")
	// ErrConflict means that an object of another's stands in the way: a bridge
	// name that is no bridge, another address on the gateway.
	ErrConflict = errors.New("conflicts with what is there")
	// ErrNoNetns means that a path is no network namespace, or gone.
	ErrNoNetns = errors.New("no such network namespace")
	// ErrNotSupported means that this kernel lacks the feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrPermission means that the process lacks the right (CAP_NET_ADMIN, a read-only /proc/sys).
	ErrPermission = errors.New("not permitted")
	// ErrInvalid means that the kernel refused a value (EINVAL, ERANGE).
	ErrInvalid = errors.New("invalid value")
	// ErrBusy means that the kernel asks for another try (EBUSY, EAGAIN, ENOBUFS).
	ErrBusy = errors.New("busy")
)
