package nodeipam

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
)

// registry is where the Nodes and the Lease are.
type registry struct {
	rest.Objects
	// api is the API server, or nil in etcd and in a directory. There are no events, conditions and ClusterCIDRs without it.
	api *rest.Client
	// follow follows the Nodes until ctx ends.
	follow func(ctx context.Context, to cluster.Follower[*nodeObject]) error
	close  func()
	// refused has when the server last refused a change of a condition.
	refused refusal
}

// passwordVariable is the environment variable for the password of etcd.
const passwordVariable = "CNIBOX_ETCD_PASSWORD"

// open opens the registry of the flags.
func (s *settings) open(env []string) (*registry, error) {
	switch {
	case len(s.etcd.Endpoints) > 0:
		if s.etcd.Password == "" {
			s.etcd.Password = process.Getenv(env, passwordVariable)
		}
		r, err := etcd.Open(s.etcd.Options())
		if err != nil {
			return nil, err
		}
		return withoutServer(r, r), nil
	case s.dir != "":
		r, err := dir.Open(dir.Options{Dir: s.dir, Name: name, Rescan: s.lease.Retry})
		if err != nil {
			return nil, err
		}
		return withoutServer(r, r), nil
	}
	client, err := rest.Open(rest.Choose(s.kubeconfig, s.master, func(name string) string { return process.Getenv(env, name) }))
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return kubernetes(client), nil
}

// kubernetes returns the registry of an API server.
func kubernetes(client *rest.Client) *registry {
	follow := func(ctx context.Context, to cluster.Follower[*nodeObject]) error {
		return rest.Follow(ctx, client, nodesPath, to)
	}
	return &registry{Objects: client, api: client, follow: follow, close: client.Close}
}

// withoutServer returns a registry without an API server.
func withoutServer(r objects.Registry, c io.Closer) *registry {
	client := objects.New(r)
	follow := func(ctx context.Context, to cluster.Follower[*nodeObject]) error {
		return objects.Follow(ctx, client, nodesPath, to)
	}
	return &registry{Objects: client, follow: follow, close: func() { _ = c.Close() }} // only connections are closed
}

// assign writes pod networks to a Node, and stores the server's reply in o.
func (r *registry) assign(ctx context.Context, path string, p *nodePatch, o *nodeObject) error {
	err := r.Patch(ctx, path, rest.MergePatch, p, o)
	if err == nil && len(o.Spec.PodCIDRs) == 0 {
		err = errors.New("the server's reply has no podCIDRs: look for an admission webhook that removes them")
	}
	return err
}

// event logs why a Node has no pod networks, and makes an event of it. The event's name follows from
// the Node and the reason, so that a later leader does not make it again while the server keeps it.
func (r *registry) event(ctx context.Context, log *slog.Logger, name, uid, reason string, cause error) {
	log.Warn("a node has no pod networks", "node", name, "reason", reason, "error", cause)
	if r.api == nil {
		return
	}
	now, id := time.Now().UTC().Format(time.RFC3339), sha256.Sum256([]byte(uid+" "+reason))
	err := r.Create(ctx, "/api/v1/namespaces/default/events", map[string]any{
		"metadata":       map[string]any{"name": fmt.Sprintf("%.236s.%x", name, id[:8]), "namespace": "default"},
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid},
		"reason":         reason, "message": cause.Error(), "type": "Warning", "count": 1,
		"source": map[string]any{"component": lockName}, "firstTimestamp": now, "lastTimestamp": now,
	}, nil)
	if err != nil && ctx.Err() == nil && !errors.Is(err, rest.ErrConflict) {
		log.Warn("cannot make an event", "node", name, "error", err)
	}
}
