package azurevnet

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/azureview"
)

// handler is the course of all interface roles, and azure's state file after it.
type handler struct {
	*attach.Handler
	conf *Conf
}

// handles is a table entry's New.
func handles(read func([]byte) (*role, error)) func([]byte) (roles.Handler, error) {
	return func(conf []byte) (roles.Handler, error) {
		r, err := read(conf)
		if err != nil {
			return nil, err
		}
		return &handler{attach.New(r), r.conf}, nil
	}
}

// undoes is a table entry's Undo: what can be decoded is enough.
func undoes(read func([]byte) (*role, error)) func([]byte) (roles.Handler, error) {
	return handles(func(conf []byte) (*role, error) {
		r, err := read(conf)
		if errors.Is(err, roles.ErrConf) {
			err = nil
		}
		return r, err
	})
}

// Add attaches a container.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	ctx, tell := a.telling(ctx, h)
	defer tell()
	return a.Handler.Add(ctx, h, req)
}

// Del detaches it.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	ctx, tell := a.telling(ctx, h)
	defer tell()
	return a.Handler.Del(ctx, h, req)
}

// GC detaches those that the runtime does not list.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	ctx, tell := a.telling(ctx, h)
	defer tell()
	return a.Handler.GC(ctx, h, req)
}

// telling has azure's files written when all is done: the role's own, and with it that
// of the IPAM role that it calls.
func (a *handler) telling(ctx context.Context, h *roles.Host) (_ context.Context, tell func()) {
	ctx, end := azureview.Batch(ctx, h)
	return ctx, func() {
		azureview.Write(ctx, h, &a.conf.Conf, azureview.Network)
		end()
	}
}
