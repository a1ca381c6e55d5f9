package azurevnet

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
)

// handler runs the verbs of all interface roles, and then writes azure's state
// file.
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
