package azurevnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/store"
)

// checkAddresses returns an error if the node's interface had IPv4 addresses
// when attachments were created and has none now: they and the routes were
// deleted with the bridge. cnibox has no record of the routes, so it cannot
// restore them. A pod attached now could not reach anything outside the node.
func (o *observed) checkAddresses(ctx context.Context, h *roles.Host) error {
	if slices.ContainsFunc(o.Own, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		return nil
	}
	return lostAddresses(ctx, h, func(link string, _ netip.Prefix) bool { return link == o.Master.Name })
}

// checkLostSubnet returns the same error if no interface has the container's
// subnet any more.
func checkLostSubnet(ctx context.Context, h *roles.Host, in *attach.Input) error {
	if in.IPAM == nil {
		return nil
	}
	ips, err := attach.Addresses(in.IPAM)
	if err != nil {
		return err
	}
	return lostAddresses(ctx, h, func(_ string, own netip.Prefix) bool {
		return slices.ContainsFunc(ips, func(ip attach.IPConfig) bool { return own.Contains(ip.Address.Addr()) })
	})
}

// lostAddresses returns an error that lists the recorded IPv4 addresses of the
// node for which affected is true, and says how to restore them. It returns nil
// if there are none.
func lostAddresses(ctx context.Context, h *roles.Host, affected func(link string, own netip.Prefix) bool) error {
	var link string
	var addresses []netip.Prefix
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		for i := range all {
			if all[i].Part(roleName) == nil {
				continue
			}
			master, own := azureview.OwnOf(all[i].Note)
			for _, p := range own {
				if p.Addr().Is4() && affected(master, p) && !slices.Contains(addresses, p) {
					link, addresses = master, append(addresses, p)
				}
			}
		}
		return err
	})
	if err != nil || len(addresses) == 0 {
		return err
	}
	return fmt.Errorf("%w: %q had %v, and neither it nor its bridge has an IPv4 address now: they were deleted with the bridge: "+
		"configure the interface again with 'networkctl reconfigure %[2]s', or with 'ip address add %[4]s dev %[2]s' and its routes; then delete the pods that have no bridge",
		roles.ErrTryAgain, link, addresses, addresses[0])
}
