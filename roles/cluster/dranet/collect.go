package dranet

import (
	"context"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// listTime bounds the list of all ResourceClaims.
const listTime = 2 * time.Minute

// collector releases the addresses of devices whose ResourceClaims do not exist, because DraNet does not repeat a failed release.
type collector struct {
	host *roles.Host
	// list returns the UIDs of all ResourceClaims of the cluster, or an error.
	list func(context.Context) (map[string]bool, error)
	// absent has the claims that the last successful list lacked. The second one that lacks a claim ends it: a claim that was deleted by
	// force can have a pod that still ends.
	absent map[string]bool
	// failing is the error of the last search, so that it is logged once.
	failing string
}

// collect searches once.
func (c *collector) collect(ctx context.Context) {
	err := c.search(ctx)
	if err != nil && ctx.Err() == nil && err.Error() != c.failing {
		c.host.Log.Warn("no address of a deleted ResourceClaim is released", "error", err)
	}
	c.failing = ""
	if err != nil {
		c.failing = err.Error()
	}
}

// search releases the addresses of this node's devices whose claims two lists in a row lacked. It reads the leases first: a claim of
// one of them exists in a later list unless it was deleted. A UID never returns.
func (c *collector) search(ctx context.Context) error {
	leases, err := store.Read(ctx, c.host.Store, ranges.DeviceLeases)
	if err != nil || len(leases) == 0 {
		c.absent = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	exist, err := c.list(ctx)
	if err != nil {
		return err
	}
	before := c.absent
	c.absent = map[string]bool{}
	for i := range leases {
		o := leases[i].Owner
		if exist[o.ContainerID] {
			continue
		}
		c.absent[o.ContainerID] = true
		if !before[o.ContainerID] {
			continue
		}
		released, releaseErr := release(ctx, c.host, o.ContainerID, o.IfName)
		if len(released) > 0 {
			c.host.Log.Warn("a ResourceClaim does not exist and DraNet did not release the addresses of its device: they are free", "claim", o.ContainerID, "device", o.IfName, "addresses", texts(released))
		}
		if releaseErr != nil {
			err = fmt.Errorf("release the addresses of ResourceClaim %s: %w", o.ContainerID, releaseErr)
		}
	}
	return err
}
