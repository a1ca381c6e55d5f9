package nodeipam

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
)

// Run runs the daemon until ctx ends.
func Run(ctx context.Context, h *roles.Host, args []string) error {
	s, err := parseFlags(h.Program, args, h.Env)
	if err != nil {
		return err
	}
	reg, err := s.open(h.Env)
	if err != nil {
		return err
	}
	defer reg.close()
	self := process.Getenv(h.Env, "POD_NAME")
	if self == "" {
		if self, err = os.Hostname(); err != nil {
			return err
		}
	}
	server, closeSocket, err := service.Start(ctx, socketPath(h, s.socket), h.Log)
	if err != nil {
		return err
	}
	defer closeSocket()
	d := &daemon{log: h.Log, lease: s.lease.Namespace + "/" + s.lease.Name, identity: self + "_" + rand.Text()}
	if s.fromCloud() {
		d.cloud = &cloudNode{client: reg, log: h.Log, name: s.node, provider: s.provider, url: s.url}
	}
	defer server.Handle(map[string]service.Handler{service.Status: func(context.Context, *service.Request) (any, error) { return d.status(), nil }})()
	if s.listen != "" {
		end, err := process.ServeHTTP(ctx, s.listen, d.handler(), h.Log)
		if err != nil {
			return fmt.Errorf("listen on -metrics-bind-address: %w", err)
		}
		defer end()
	}
	if d.cloud != nil {
		d.cloud.run(ctx)
		return nil
	}
	o := s.lease
	o.Client, o.Identity, o.Log, o.Seen = reg, d.identity, h.Log, d.seen
	h.Log.Info("waiting for the lease", "lease", d.lease, "identity", d.identity)
	err = election.Run(ctx, o, func(ctx context.Context, term *election.Term) bool {
		_, _ = s.networks.reload() // the controller reports an error
		t, err := s.networks.table()
		if err != nil {
			h.Log.Error("the networks were valid before", "error", err)
			return true
		}
		c := newController(reg, h.Log, term, t, &s.networks)
		c.interval = s.lease.Retry
		d.leading.Store(c)
		defer d.leading.Store(nil)
		return c.run(ctx)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// socketPath returns the path of the status socket.
func socketPath(h *roles.Host, flag string) string {
	if flag != "" {
		return flag
	}
	return filepath.Join(filepath.Dir(h.Store.OverlayPath()), name+".sock")
}
