package roles

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// Host is everything that a role may use.
type Host struct {
	// Role is the name that the role was called by.
	Role string
	// Program is the binary's own version, recorded with what it makes.
	Program  string
	Net      *netops.Net
	Store    *store.Store
	Delegate Delegator
	Log      *slog.Logger
	// Now is the wall clock; it is recorded, and no decision depends on it.
	Now func() time.Time
	// Sockets are the sockets that a service manager opened for a daemon
	// (sd_listen_fds(3)).
	Sockets []*os.File
	// Env is a daemon's environment, "K=V": it sets the flags that the command line does not.
	Env []string
}

// Delegator calls another plugin by type: in process when the type resolves on
// CNI_PATH to this binary, else by executing the file.
type Delegator interface {
	// Add runs the plugin's ADD; when that fails it runs its DEL and returns
	// ADD's error. conf is passed on as it is.
	Add(ctx context.Context, typ string, req *Request) (*Result, error)
	Del(ctx context.Context, typ string, req *Request) error
	Check(ctx context.Context, typ string, req *Request) error
	GC(ctx context.Context, typ string, req *Request) error
	Status(ctx context.Context, typ string, req *Request) error
	// OverLink reports whether the type is an IPAM role that needs the interface
	// to exist (see Role.OverLink), also if a third-party plugin of that name is
	// installed.
	OverLink(typ string) bool
	// Find is nil when the type's file is on CNI_PATH and can be called, else an error
	// that is ErrNoPlugin or ErrConf.
	Find(typ string, req *Request) error
	// InProcess reports whether the type's file on CNI_PATH is this binary: the
	// role then keeps its records in h.Store.
	InProcess(typ string, req *Request) bool
	// Plan is what the plugin's ADD would do, or an ErrUnplanned where that cannot be
	// known. Like Preview it calls our role whatever file is installed.
	Plan(ctx context.Context, typ string, req *Request) (*Plan, error)
	// Preview is what Add would answer, without reserving anything: the plugin's
	// own Previewer if it is called in process and has one, else the placeholder
	// 192.0.2.2/24 with gateway 192.0.2.1 (RFC 5737).
	Preview(ctx context.Context, typ string, req *Request) (*Result, error)
	// Clone is a Delegator whose plugins may run beside this one's. It has its own
	// connection to the kernel, which the returned function closes.
	Clone() (Delegator, func())
}
