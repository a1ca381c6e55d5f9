package netops

import "github.com/cnibox/cnibox/netops/internal/nlconn"

// What goes wrong in the kernel or above it.
var (
	// ErrNotExist means that a link, address, route, table or namespace is absent.
	ErrNotExist = nlconn.ErrNotExist
	// ErrExists means that an exclusive object exists already and is not ours.
	ErrExists = nlconn.ErrExists
	// ErrConflict means that another program's object stands in the way: a link
	// with the bridge's name that is not a bridge, another address on the gateway.
	ErrConflict = nlconn.ErrConflict
	// ErrNoNetns means that a path is not a network namespace, or gone.
	ErrNoNetns = nlconn.ErrNoNetns
	// ErrNotSupported means that this kernel lacks the feature.
	ErrNotSupported = nlconn.ErrNotSupported
	// ErrPermission means that the process lacks the right (CAP_NET_ADMIN, a read-only /proc/sys).
	ErrPermission = nlconn.ErrPermission
	// ErrInvalid means that the kernel refused a value (EINVAL, ERANGE).
	ErrInvalid = nlconn.ErrInvalid
	// ErrBusy means that the kernel asks for another try (EBUSY, EAGAIN, ENOBUFS).
	ErrBusy = nlconn.ErrBusy
)
