package netops

import "github.com/cnibox/cnibox/netops/internal/nlconn"

// Errors of the kernel and of this package. Use errors.Is to find them.
var (
	// ErrNotExist means that a link, address, route, table or namespace does not exist.
	ErrNotExist = nlconn.ErrNotExist
	// ErrExists means that an exclusive object exists already and belongs to another owner.
	ErrExists = nlconn.ErrExists
	// ErrConflict means that another program's object conflicts with a wanted one:
	// a link with the bridge's name is not a bridge, or the gateway has another
	// address.
	ErrConflict = nlconn.ErrConflict
	// ErrNoNetns means that a path does not exist or is not a network namespace.
	ErrNoNetns = nlconn.ErrNoNetns
	// ErrNotSupported means that this kernel lacks the feature.
	ErrNotSupported = nlconn.ErrNotSupported
	// ErrPermission means that the process lacks a permission: CAP_NET_ADMIN is missing
	// or /proc/sys is read-only.
	ErrPermission = nlconn.ErrPermission
	// ErrInvalid means that the kernel refused a value (EINVAL, ERANGE).
	ErrInvalid = nlconn.ErrInvalid
	// ErrBusy means that the caller must try again (EBUSY, EAGAIN, ENOBUFS).
	ErrBusy = nlconn.ErrBusy
)
