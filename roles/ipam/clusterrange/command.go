package clusterrange

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// commands returns the role's commands of the command line.
func commands() []roles.CommandVerb {
	read := func(_ context.Context, _ *roles.Host, conf []byte) (*leasing.Allocator, error) {
		a, err := newHandler(conf)
		if err == nil && a.moves() {
			err = fmt.Errorf("%w: the agent chooses the addresses of a network with ipam.sticky or an IPAMClaim at ADD", roles.ErrUnplanned)
		}
		if err != nil {
			return nil, err
		}
		return a.Allocator, nil
	}
	return []roles.CommandVerb{
		{Name: "range", Help: "blocks of cluster-wide ranges"},
		{
			Name: "range show", Help: "show this node's blocks, with their use and the end of their validity", Example: "range show --json",
			Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				return ranges.Show(ctx, h)
			},
		},
		{
			Name: "range release", Args: "NETWORK KEY", Help: "end a reservation that no container uses, on any node", Example: "range release net default/web",
			Flags: []roles.Flag{{Name: "pool", Help: "the pool, if the network does not use the shared one"}},
			Run: func(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
				return nil, ranges.AskReservation(ctx, h, &ranges.Reserve{
					ReservationID: store.ReservationID{Pool: flags["pool"], Network: args[0], Key: args[1]}, Free: true,
				})
			},
		},
		leasing.PlanVerb("range plan", read, names()...),
	}
}
