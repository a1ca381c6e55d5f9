package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/egress"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// verbs returns the role's commands.
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{
			Name: "agent status", Help: "show the agent's kernel entries for every other node", Example: "agent status --json",
			Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
				is, err := askStatus(ctx, h)
				if err != nil {
					return nil, err
				}
				if err := is.addTunnelFaults(ctx, h); err != nil {
					is.Warnings = append(is.Warnings, "what drops packets between nodes is not known: "+err.Error())
				}
				switch {
				case !is.Ready:
					return is, fmt.Errorf("%w: %s", errNotReady, is.Reason)
				case is.Peers.Programmed < is.Peers.Wanted:
					return is, fmt.Errorf("%w: %d of %d", errPeersMissing, is.Peers.Programmed, is.Peers.Wanted)
				case len(is.Unheard) > 0:
					return is, roles.Warning(fmt.Sprintf("%d of %d nodes do not answer through the tunnel", len(is.Unheard), is.Peers.Wanted))
				}
				return is, nil
			},
		},
		{
			Name: "agent rotate-key", Help: "give this node a new WireGuard key, which the agent uses and publishes within a minute", Run: rotateKey,
			Example: "agent rotate-key",
		},
		{
			Name: "agent guard", Help: "before flanneld with the backend wireguard is stopped: refuse packets to the pods of other nodes while no device encrypts them",
			Run: guard, Example: "agent guard",
		},
		{
			Name: "agent cleanup", Help: "remove everything that the agent made on this node; with registry flags, also its record",
			Flags: append(cleanupFlags(), roles.Flag{
				Name: keepDevice, Switch: true, Help: "keep the devices and the subnet file, for a flanneld that runs again and has taken them over",
			}, roles.Flag{
				Name: force, Switch: true, Help: "remove WireGuard's route that refuses packets, too, while pods are attached: their packets can leave unencrypted",
			}), Run: cleanup, Example: "agent cleanup",
		},
	}
}

// Flags of cleanup.
const (
	keepDevice = "keep-device"
	force      = "force"
)

// cleanupFlags returns the agent's flags for registries and paths.
func cleanupFlags() []roles.Flag {
	s := &settings{}
	f := process.NewFlags(ownName)
	s.registry.register(f)
	s.registerPaths(f)
	return process.VerbFlags(f, "set-node-network-unavailable", "subnet-lease-renew-margin", "node-labels") // only for a running agent
}

// cleanup removes what the agent made on this node. It withdraws the node's record if the flags name a
// registry. It continues after an error. The agent must be stopped.
func cleanup(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	for _, f := range cleanupFlags() {
		if v, ok := flags[f.Name]; ok && v != f.Default {
			args = append(args, "-"+f.Name+"="+v)
		}
	}
	s, err := parseFlags(ownName, h.Program, args, nil)
	if err != nil {
		return nil, err
	}
	s.setDefaultPaths(h.Store)
	lock := h.Store.AgentSocket() + ".lock"
	unlock, err := service.Lock(lock)
	if err != nil {
		return nil, fmt.Errorf("clean up: %w", err)
	}
	defer unlock()
	done := "removed everything of the agent from this node; its record in the registry stays, because no flag names the registry"
	var errs []error
	if r := &s.registry; r.kube || r.dir != "" || len(r.etcd.Endpoints) > 0 {
		name, err := s.release(ctx, h)
		errs = append(errs, err)
		done = "removed everything of the agent from this node, and its record from the registry " + name
	}
	var guarded []netip.Prefix
	remove, attached := (*overlay.Kernel).Remove, noneAttached(ctx, h)
	switch {
	case flags[keepDevice] != "":
		remove, s.subnetEnv = (*overlay.Kernel).Release, ""
	case attached != nil && flags[force] == "":
		remove = func(o *overlay.Kernel, ctx context.Context) error {
			networks, err := o.RemoveToGuard(ctx)
			guarded = append(guarded, networks...)
			return err
		}
	}
	errs = append(errs, s.clean(ctx, h, remove), os.Remove(lock))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(guarded) > 0 {
		done += fmt.Sprintf("; the routes that refuse unencrypted packets to %s stay: %v, and repeat the command, or give --force", join(guarded), attached)
	}
	return done, nil
}

// guard makes the guards of the pod networks of flanneld's WireGuard devices.
func guard(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
	var all []netip.Prefix
	for _, v6 := range []bool{false, true} {
		err := withOverlay(ctx, h.Net, v6, func(o *overlay.Kernel, ctx context.Context) error {
			networks, err := o.GuardFlannel(ctx)
			all = append(all, networks...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no route over a device flannel-wg or flannel-wg-v6 of flanneld")
	}
	return "packets to " + join(all) + " are refused while no device encrypts them", nil
}

// join returns networks as a text.
func join(networks []netip.Prefix) string {
	all := make([]string, len(networks))
	for i, n := range networks {
		all[i] = n.String()
	}
	return strings.Join(all, ", ")
}

// clean removes devices and routes with remove, then packet filter rules and files, and deletes the
// memory. It continues after an error.
func (s *settings) clean(ctx context.Context, h *roles.Host, remove func(*overlay.Kernel, context.Context) error) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		errs = append(errs, withOverlay(ctx, h.Net, v6, remove))
	}
	errs = append(errs, removeFilter(ctx, h.Net), egress.Remove(ctx, h))
	for _, path := range []string{s.overlayFile, s.subnetEnv, h.Store.AgentSocket()} {
		if err := os.Remove(path); path != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, memory{h}.forget(ctx))...)
}

// release withdraws this node's record and returns the name of the registry.
func (s *settings) release(ctx context.Context, h *roles.Host) (name string, err error) {
	e, err := s.open(ctx, h, memory{h}.load(ctx))
	if err != nil {
		return "", err
	}
	return e.name, errors.Join(e.Release(ctx), e.Close())
}

// withOverlay calls do with the overlay of one family.
func withOverlay(ctx context.Context, n *netops.Net, v6 bool, do func(*overlay.Kernel, context.Context) error) error {
	o, err := overlay.Open(n, overlay.Options{IPv6: v6}) //nolint:contextcheck // it listens until Close
	if err != nil {
		return err
	}
	return errors.Join(do(o, ctx), o.Close())
}

func removeFilter(ctx context.Context, n *netops.Net) error {
	f, err := overlay.OpenFilter(n) //nolint:contextcheck // it listens until Close
	if err != nil {
		return err
	}
	return errors.Join(f.Remove(ctx), f.Close())
}
