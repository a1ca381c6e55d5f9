package roles

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// Host is everything that a role may use.
type Host struct {
	// Role is the name that the role was called by.
	Role string
	// Program is the binary's own version, recorded with every attachment.
	Program  string
	Net      *netops.Net
	Store    *store.Store
	Delegate Delegator
	// Reference is nil in a program that does not replace the reference plugins.
	Reference ReferencePlugins
	Log       *slog.Logger
	// Now is the wall clock; it is recorded, and no decision depends on it.
	Now func() time.Time
	// SinceBoot is store.SinceBoot. Only leases of cluster-wide ranges need it.
	SinceBoot func() time.Duration
	// Sockets are the sockets that a service manager opened for a daemon
	// (sd_listen_fds(3)).
	Sockets []*os.File
	// Types are the CNI types that this program plays, and Executable is its own file, which a
	// daemon can install.
	Types      []string
	Executable string
	// Env is a daemon's environment, "K=V". It sets the flags that the command line does
	// not set.
	Env []string
	// Steps measures the call. It is nil if nothing is measured.
	Steps *Steps
}

// Steps has the durations of parts of a call so far, in nanoseconds; see store.Steps. Goroutines may share it.
type Steps struct {
	Lock, IPAM, Delegate atomic.Int64
	Net                  netops.Spent
}

// Read returns the durations. Those of nil are 0.
func (s *Steps) Read() store.Steps {
	if s == nil {
		return store.Steps{}
	}
	read := func(n *atomic.Int64) time.Duration { return time.Duration(n.Load()) }
	return store.Steps{
		Lock: read(&s.Lock), IPAM: read(&s.IPAM), Delegate: read(&s.Delegate),
		Netlink: read(&s.Net.Rtnetlink), Nftables: read(&s.Net.Nftables),
	}
}

// Delegator calls another plugin by type: in process when the type resolves on
// CNI_PATH to this binary, else by executing the file.
type Delegator interface {
	// Add runs the plugin's ADD. If ADD fails, it runs the plugin's DEL and returns ADD's
	// error. The configuration is passed on unchanged.
	Add(ctx context.Context, typ string, req *Request) (*Result, error)
	Del(ctx context.Context, typ string, req *Request) error
	Check(ctx context.Context, typ string, req *Request) error
	GC(ctx context.Context, typ string, req *Request) error
	Status(ctx context.Context, typ string, req *Request) error
	// OverLink reports whether the type is an IPAM role that needs the interface to exist
	// (see Role.OverLink), even if a third-party plugin of that name is installed.
	OverLink(typ string) bool
	// Moves reports whether the type is an IPAM role whose addresses may move between nodes with the request's
	// configuration (see Role.Moves).
	Moves(typ string, req *Request) bool
	// Find returns nil if the type's file is on CNI_PATH and can be called, else
	// ErrNoPlugin or ErrConf.
	Find(typ string, req *Request) error
	// InProcess reports whether the type's file on CNI_PATH is this binary: the
	// role then keeps its records in h.Store.
	InProcess(typ string, req *Request) bool
	// Plan returns what the plugin's ADD would do, or ErrUnplanned if that cannot be
	// known. It calls the role of this binary, even if a third-party plugin of that name
	// is installed.
	Plan(ctx context.Context, typ string, req *Request) (*Plan, error)
	// Preview returns the result that Add would return, and reserves nothing. It calls
	// the role of this binary, as Plan does. If only ADD knows the addresses, the error is
	// ErrUnplanned and says why, and the result is the placeholder 192.0.2.2/24 with gateway
	// 192.0.2.1 (RFC 5737).
	Preview(ctx context.Context, typ string, req *Request) (*Result, error)
	// WithCopies returns a Delegator that also calls a plugin in process if its file is a copy
	// of this binary, as isCopy reports.
	WithCopies(isCopy func(file string) bool) Delegator
	// Clone returns a Delegator that may be used in another goroutine. It has its own
	// connection to the kernel, which the returned function closes.
	Clone() (Delegator, func())
}
