package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// newKeeper returns the keeper of this node's blocks of cluster-wide ranges.
func newKeeper(ctx context.Context, h *roles.Host, registry *registryClient, set *settings, s *service.Server) *ranges.Keeper {
	claims, _ := registry.Registry.(cluster.IPAMClaims)       // Kubernetes alone has them
	deletions, _ := registry.Registry.(cluster.PageDeletions) // a directory alone has them
	return ranges.NewKeeper(ranges.Options{
		Host: h, Server: s, Registry: registry, Claims: claims, Deletions: deletions, Node: registry.node, Machine: memory{h}.machine(ctx), Planned: set.plannedDemands, Sole: set.rangesOnly,
	})
}

// plannedDemands returns what the networks in the container runtime's directory will demand of cluster-wide ranges. A file that
// cannot be read is left out: the runtime reports it.
func (s *settings) plannedDemands() (all []store.RangeDemand) {
	entries, err := os.ReadDir(s.cniConfDir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		if content, err := smallfile.Read(filepath.Join(s.cniConfDir, e.Name()), maxNetwork); err == nil {
			all = append(all, s.demands(content)...)
		}
	}
	return all
}

// keepRanges is the agent with -ranges-only.
func keepRanges(ctx context.Context, h *roles.Host, set *settings, s *service.Server) (err error) {
	registry, err := set.open(ctx, h, remembered{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	notifySystemd(h)
	h.Log.Info("the agent leases blocks of cluster-wide ranges for this node until it is stopped", "node", registry.node, "registry", registry.name)
	newKeeper(ctx, h, registry, set, s).Run(ctx)
	return nil
}
