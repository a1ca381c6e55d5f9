package leasing

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Reader makes an allocator from a plugin's whole configuration.
type Reader func(ctx context.Context, h *roles.Host, conf []byte) (*Allocator, error)

// PlanVerb returns the verb that shows the addresses ADD would give with a configuration.
// types are the values of ipam.type that read accepts.
func PlanVerb(name string, read Reader, types ...string) roles.CommandVerb {
	return roles.CommandVerb{
		Name: name, Args: "FILE", Run: configured{types, read}.forecast, Example: name + " NET.conflist --pod default/web",
		Help: "print which addresses a pod would get from a configuration now, and why",
		Flags: []roles.Flag{
			{Name: "pod", Help: "the pod, NAMESPACE/NAME"},
			{Name: "container", Default: "plan", Help: "the container's ID"},
			{Name: "ifname", Default: "eth0", Help: "the interface's name"},
			{Name: "mac", Help: "the hardware address that is asked for"},
			{Name: "ip", Help: "the address that is asked for"},
		},
	}
}

// Verbs returns the command line's verbs for pools. They work on the pools of every role.
// types are the values of ipam.type that read accepts.
func Verbs(read Reader, types ...string) []roles.CommandVerb {
	r := configured{types, read}
	network := roles.Flag{Name: "network", Help: "the network, if several networks have the address"}
	conf := roles.Flag{Name: "conf", Help: "file with the network's configuration"}
	force := func(help string) roles.Flag { return roles.Flag{Name: "force", Help: help, Switch: true} }
	return []roles.CommandVerb{
		{Name: "ipam", Help: "show, predict and change the owners of addresses"},
		{
			Name: "ipam show", Args: "[NETWORK|ADDRESS…]", Run: r.show, Flags: []roles.Flag{conf},
			Help: "show addresses with their owners, states and expiry times", Example: "ipam show 10.22.0.9",
		},
		PlanVerb("ipam plan", read, types...),
		{
			Name: "ipam reserve", Args: "ADDRESS…", Run: r.reserve,
			Help: "keep addresses for a pod, or unused", Example: "ipam reserve 10.22.0.9 --for default/web --until 48h",
			Flags: []roles.Flag{
				{Name: "for", Help: "the identity: NAMESPACE/POD[/INTERFACE], name:CONTAINER, mac:ADDRESS; without it no pod gets them"},
				{Name: "until", Default: "never", Help: "end, such as 48h or 2027-01-31T12:00:00Z"},
				network, conf, force("take them from the identity that they are kept for"),
			},
		},
		{
			Name: "ipam release", Args: "ADDRESS", Run: releaseOne, Flags: []roles.Flag{network, force("even if its container exists and continues to use it")},
			Help: "free an address that is kept, or leased to a dead container", Example: "ipam release 10.22.0.9",
		},
		{
			Name: "ipam gc", Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				return Collect(ctx, h)
			},
			Help: "remove the addresses of dead containers, and expired reservations", Example: "ipam gc",
		},
		{
			Name: "ipam export", Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				return ExportReservations(ctx, h)
			},
			Help: "print the reservations as JSON (leases: cnibox state export)", Example: "ipam export > reservations.json",
		},
	}
}

func (r configured) show(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	plans := map[store.PoolID]*Plan{}
	if flags["conf"] != "" {
		network, a, err := r.confFile(ctx, h, flags["conf"])
		if err != nil {
			return nil, err
		}
		plans[a.ID(network)] = a.Plan
		return Show(ctx, h, args, plans)
	}
	// The runtimes' caches have the configurations of the networks in use.
	for _, c := range recovery.ReadCaches(h, recovery.CacheDirs(h.Store.RunDir())) {
		network, a, err := r.confIn(ctx, h, c.Config)
		if err != nil {
			continue // of another IPAM plugin
		}
		if id := a.ID(network); plans[id] == nil {
			plans[id] = a.Plan
		}
	}
	return Show(ctx, h, args, plans)
}

func (r configured) reserve(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	pin, err := pinOf(h, flags, args)
	if err != nil {
		return nil, err
	}
	var p *Plan
	pin.Pool, p, err = r.poolOf(ctx, h, flags)
	if err != nil {
		return nil, err
	}
	if p != nil {
		var asked []AddressRequest
		for _, a := range pin.Addresses {
			asked = append(asked, AddressRequest{path: "ADDRESS", addr: a})
		}
		if _, err := p.assign(asked); err != nil {
			return nil, err
		}
	}
	return ReserveAddresses(ctx, h, pin)
}

func releaseOne(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	addrs, err := parseAddresses(args)
	if err != nil {
		return nil, err
	}
	if len(addrs) > 1 {
		return nil, roles.Usagef("want one ADDRESS")
	}
	return ReleaseAddress(ctx, h, flags["network"], addrs[0], flags["force"] != "")
}
