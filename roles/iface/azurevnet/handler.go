package azurevnet

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/azureview"
)

// handler runs the verbs of all interface roles, and then writes azure's state
// file.
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
	ctx, writeFiles := a.deferFiles(ctx, h)
	defer writeFiles()
	return a.Handler.Add(ctx, h, req)
}

// Del detaches a container.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	ctx, writeFiles := a.deferFiles(ctx, h)
	defer writeFiles()
	return a.Handler.Del(ctx, h, req)
}

// GC detaches the containers that the runtime does not list.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	ctx, writeFiles := a.deferFiles(ctx, h)
	defer writeFiles()
	return a.Handler.GC(ctx, h, req)
}

// deferFiles returns a function that writes azure's state files: the role's
// own, and with it the file of the IPAM role that was called with the context.
func (a *handler) deferFiles(ctx context.Context, h *roles.Host) (_ context.Context, writeFiles func()) {
	ctx, end := azureview.Batch(ctx, h)
	return ctx, func() {
		azureview.Write(ctx, h, &a.conf.Conf, azureview.Network)
		end()
	}
}
