package dranet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// maxNetwork bounds a network's file in bytes.
const maxNetwork = 1 << 20

// errNoProfile means that no network has the name of a profile.
var errNoProfile = errors.New("unknown profile")

// provider gives addresses to devices and takes them back.
type provider struct {
	host    *roles.Host
	confDir string
	read    Reader
}

// profile reads the network with a name. The first of several files counts, as for a runtime. Files are read for each call, so a
// changed one needs no restart.
func (p *provider) profile(name string) (ranges.Devices, error) {
	entries, err := os.ReadDir(p.confDir)
	if err != nil {
		return nil, fmt.Errorf("read networks: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		content, err := smallfile.Read(filepath.Join(p.confDir, e.Name()), maxNetwork)
		if err != nil {
			p.host.Log.Warn("a network is left out", "error", err)
			continue
		}
		network, d, err := p.read(content)
		if network != name {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("profile %q: %s: %w", name, e.Name(), err)
		}
		return d, nil
	}
	return nil, fmt.Errorf("%w %.140q: no network with ipam.type \"range\" has this name in %s", errNoProfile, name, p.confDir)
}

// give returns the addresses and routes of a profile for a device. The same device of a claim gets the same ones until they are
// released.
func (p *provider) give(ctx context.Context, c *call) (*networkConfig, error) {
	from, err := p.profile(c.Config.Profile)
	if err != nil {
		return nil, err
	}
	lock, err := p.host.Store.LockAttachment(ctx, ranges.DeviceKey("", c.ClaimUID, c.Device.Name))
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := ctx.Err(); err != nil { // DraNet waits no more, and a release may have overtaken the call
		return nil, err
	}
	owner := ranges.DeviceKey(c.Config.Profile, c.ClaimUID, c.Device.Name)
	leases, err := p.leases(ctx, c)
	if err == nil && len(leases) == 0 {
		if err = from.Add(ctx, p.host, owner, c.addresses); errors.Is(err, roles.ErrConf) {
			err = fmt.Errorf("%w: %w", errRequest, err)
		}
		if err == nil {
			leases, err = p.leases(ctx, c)
			p.host.Log.Info("gave addresses to a device", "profile", c.Config.Profile, "claim", c.ClaimUID, "device", c.Device.Name, "addresses", texts(leases))
			if err == nil && len(leases) == 0 {
				err = fmt.Errorf("%w: an operator has released the addresses", roles.ErrTryAgain)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", c.Config.Profile, err)
	}
	if has := leases[0].Owner; has != owner {
		network, _ := ranges.DeviceNetwork(has)
		return nil, fmt.Errorf("%w: device %q has %v of profile %q for this claim, not of %q: delete the pod that uses it", store.ErrTaken, c.Device.Name, texts(leases), network, c.Config.Profile)
	}
	res, err := from.Result(leases)
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", c.Config.Profile, err)
	}
	return resolved(res, c.addresses), nil
}

// leases returns the leases of a device for a claim, from any network.
func (p *provider) leases(ctx context.Context, c *call) ([]store.Lease, error) {
	all, err := store.Read(ctx, p.host.Store, ranges.DeviceLeases)
	return slices.DeleteFunc(all, func(l store.Lease) bool {
		return l.Owner.ContainerID != c.ClaimUID || l.Owner.IfName != c.Device.Name
	}), err
}

// release releases the addresses that a device has for a claim, of any network, and returns them. A device without addresses is not an error.
func release(ctx context.Context, h *roles.Host, claimUID, device string) (released []store.Lease, err error) {
	lock, err := h.Store.LockAttachment(ctx, ranges.DeviceKey("", claimUID, device))
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	leases, err := store.Read(ctx, h.Store, ranges.DeviceLeases)
	if err != nil {
		return nil, err
	}
	networks := map[string]bool{}
	for i := range leases {
		if o := leases[i].Owner; o.ContainerID == claimUID && o.IfName == device {
			networks[o.Network] = true
		}
	}
	var faults []error
	for network := range networks {
		some, err := leasing.Release(ctx, h, &roles.Request{Network: network, ContainerID: claimUID, IfName: device})
		released, faults = append(released, some...), append(faults, err)
	}
	if len(released) > 0 {
		_ = ranges.Notify(h) // an agent that starts later reads that the addresses are free
		h.Log.Info("released the addresses of a device", "claim", claimUID, "device", device, "addresses", texts(released))
	}
	return released, errors.Join(faults...)
}

func texts(leases []store.Lease) (all []string) {
	for i := range leases {
		all = append(all, leases[i].Address.String())
	}
	return all
}

// resolved returns what the profile adds to the user's configuration: DraNet merges both, and the addresses that the user gave stay as
// the user wrote them.
func resolved(res *roles.Result, given []netip.Addr) *networkConfig {
	out := &networkConfig{}
	gateways := map[bool]string{}
	for _, ip := range res.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		if a = a.Unmap(); !slices.Contains(given, a) {
			out.Interface.Addresses = append(out.Interface.Addresses, ip.Address.String())
		}
		if len(ip.Gateway) > 0 {
			gateways[a.Is4()] = ip.Gateway.String()
		}
	}
	for _, r := range res.Routes {
		out.Routes = append(out.Routes, routeOf(r, gateways[r.Dst.IP.To4() != nil]))
	}
	return out
}

// routeOf returns a route of a result in DraNet's form. As with an interface plugin, a route without a gateway has the network's; one
// without both is on the link, which DraNet has to be told.
func routeOf(r *types.Route, gateway string) route {
	out := route{Destination: r.Dst.String(), Gateway: gateway}
	if len(r.GW) > 0 {
		out.Gateway = r.GW.String()
	}
	if r.Scope != nil {
		out.Scope = *r.Scope
	}
	if out.Scope != unix.RT_SCOPE_UNIVERSE && len(r.GW) == 0 {
		out.Gateway = ""
	}
	if out.Gateway == "" && r.Scope == nil {
		out.Scope = unix.RT_SCOPE_LINK
	}
	if r.Table != nil {
		out.Table = *r.Table
	}
	return out
}
