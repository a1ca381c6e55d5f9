package hostlocal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// commands are the role's own on the command line.
func commands() []roles.CommandVerb {
	network := roles.Flag{Name: "network", Help: "the network, where several have the address"}
	conf := roles.Flag{Name: "conf", Help: "the network's configuration, a file"}
	force := func(help string) roles.Flag { return roles.Flag{Name: "force", Help: help, Switch: true} }
	return []roles.CommandVerb{
		{
			Name: "state export", Args: "[DIR]", Run: exportLeases,
			Help: "write the leases as the reference host-local keeps them",
		},
		{Name: "ipam", Help: "show, foresee and change who has which address"},
		{
			Name: "ipam show", Args: "[NETWORK|ADDRESS…]", Run: show, Flags: []roles.Flag{conf},
			Help: "show addresses: whose, alive or not, until when they are kept",
		},
		{
			Name: "ipam plan", Args: "FILE", Run: foresee,
			Help: "tell which addresses a pod would get by a configuration now, and why",
			Flags: []roles.Flag{
				{Name: "pod", Help: "the pod, NAMESPACE/NAME"},
				{Name: "container", Default: "plan", Help: "the container's ID"},
				{Name: "ifname", Default: "eth0", Help: "the interface's name"},
				{Name: "mac", Help: "the hardware address that is asked for"},
				{Name: "ip", Help: "the address that is asked for"},
			},
		},
		{
			Name: "ipam reserve", Args: "ADDRESS…", Run: reserve,
			Help: "keep addresses for a pod, or from everybody",
			Flags: []roles.Flag{
				{Name: "for", Help: "whom: NAMESPACE/POD[/INTERFACE], name:CONTAINER, mac:ADDRESS; else nobody gets them"},
				{Name: "until", Default: "never", Help: "end, such as 48h or 2027-01-31T12:00:00Z"},
				network, conf, force("take them from whom they are kept for"),
			},
		},
		{
			Name: "ipam release", Args: "ADDRESS", Run: releaseOne, Flags: []roles.Flag{network, force("even if its container lives, and goes on using it")},
			Help: "free an address that is kept, or leased to a dead container",
		},
		{
			Name: "ipam gc", Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				return Collect(ctx, h)
			},
			Help: "remove what dead containers left, and what has expired",
		},
		{
			Name: "ipam export", Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				return ExportReservations(ctx, h)
			},
			Help: "print the reservations as JSON (leases: cnibox state export)",
		},
		{
			Name: "ipam import", Args: "FILE|DIR", Run: importOne, Flags: []roles.Flag{force("again, and over what is kept for others")},
			Help: "take over what ipam export printed, or a reference host-local's directory",
		},
	}
}

// exportLeases is `cnibox state export --format host-local DIR`.
func exportLeases(ctx context.Context, h *roles.Host, _ map[string]string, args []string) (any, error) {
	switch len(args) {
	case 0:
		return Export(ctx, h, "")
	case 1:
		return Export(ctx, h, args[0])
	}
	return nil, fmt.Errorf("export leases: want at most one directory, have %d arguments", len(args))
}

func show(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	plans := map[store.PoolID]*plan{}
	if flags["conf"] != "" {
		network, a, err := confFile(flags["conf"])
		if err != nil {
			return nil, err
		}
		plans[a.poolID(network)] = a.plan
	}
	return Show(ctx, h, args, plans)
}

func reserve(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	pin, err := pinOf(h, flags, args)
	if err != nil {
		return nil, err
	}
	var p *plan
	if pin.Pool, p, err = poolOf(ctx, h, flags); err != nil {
		return nil, err
	}
	if p != nil {
		var asked []request
		for _, a := range pin.Addresses {
			asked = append(asked, request{path: "ADDRESS", addr: a})
		}
		if _, err := assign(p.sets, asked); err != nil {
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
		return nil, errors.New("want one ADDRESS")
	}
	return ReleaseAddress(ctx, h, flags["network"], addrs[0], flags["force"] != "")
}

func importOne(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("want FILE or DIR")
	}
	return importPath(ctx, h, args[0], flags["force"] != "")
}
