package azurevnet

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/azureview"
)

// handler answers as every interface role does, and writes azure's state file after it.
type handler struct {
	*attach.Handler
	conf *Conf
}

// withFiles has the handlers of the given function write azure's files too.
func withFiles(read func([]byte) (roles.Handler, error)) func([]byte) (roles.Handler, error) {
	return func(conf []byte) (roles.Handler, error) {
		h, err := read(conf)
		if err != nil {
			return nil, err
		}
		a := h.(*attach.Handler)
		return &handler{a, a.Builder().(*role).conf}, nil
	}
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
