package azurevnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/azureview"
	"github.com/cnibox/cnibox/store"
)

// notLost fails when the node had IPv4 addresses on its interface as attachments were
// made, and has none now: whoever deleted the bridge deleted them with it, and the
// routes. These are recorded nowhere, so nobody but who configured the interface can
// give it all back; pods that were made without would reach nobody outside.
func (o *observed) notLost(ctx context.Context, h *roles.Host) error {
	if slices.ContainsFunc(o.Own, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		return nil
	}
	return lost(ctx, h, func(link string, _ netip.Prefix) bool { return link == o.Master.Name })
}

// lostSubnet does so where no interface has the container's subnet any more.
func lostSubnet(ctx context.Context, h *roles.Host, in *attach.Input) error {
	if in.IPAM == nil {
		return nil
	}
	ips, err := attach.Addresses(in.IPAM)
	if err != nil {
		return err
	}
	return lost(ctx, h, func(_ string, own netip.Prefix) bool {
		return slices.ContainsFunc(ips, func(ip attach.Family) bool { return own.Contains(ip.Address.Addr()) })
	})
}

// lost tells which of the recorded IPv4 addresses of the node's own, that are meant, are
// to be given back, and how.
func lost(ctx context.Context, h *roles.Host, meant func(link string, own netip.Prefix) bool) error {
	var link string
	var had []netip.Prefix
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		for i := range all {
			if all[i].Part(roleName) == nil {
				continue
			}
			master, own := azureview.OwnOf(all[i].Note)
			for _, p := range own {
				if p.Addr().Is4() && meant(master, p) && !slices.Contains(had, p) {
					link, had = master, append(had, p)
				}
			}
		}
		return err
	})
	if err != nil || len(had) == 0 {
		return err
	}
	return fmt.Errorf("%w: %q had %v, and neither it nor a bridge in its place has an IPv4 address now: who deleted the bridge deleted them too: "+
		"have the interface configured again, by 'networkctl reconfigure %[2]s' or 'ip address add %[4]s dev %[2]s' and its routes; then delete the pods that have no bridge",
		roles.ErrTryAgain, link, had, had[0])
}
