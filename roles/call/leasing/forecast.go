package leasing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// maxConf is the largest size in bytes of a configuration file.
const maxConf = 1 << 20

// Forecast is the output of `cnibox ipam plan`.
type Forecast struct {
	Network string `json:"network"`
	// Identity is the identity for which the addresses would be kept; empty without
	// "ipam.sticky".
	Identity  string            `json:"identity,omitempty"`
	Addresses []ForecastAddress `json:"addresses"`
}

// ForecastAddress is an address that ADD would give now.
type ForecastAddress struct {
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Why     string       `json:"why"`
}

// Table returns the addresses as a table.
func (f *Forecast) Table() (head []string, rows [][]string) {
	for _, a := range f.Addresses {
		gw := "-"
		if a.Gateway.IsValid() {
			gw = a.Gateway.String()
		}
		rows = append(rows, []string{a.Address.String(), gw, a.Why})
	}
	return []string{"ADDRESS", "GATEWAY", "WHY"}, rows
}

// reason describes a grant's origin.
func (g Grant) reason(req AddressRequest) string {
	switch g.origin {
	case requested:
		return "asked for by " + req.path
	case kept:
		return fmt.Sprintf("kept for %q", g.of)
	case unused:
		return "the next one without a known earlier owner"
	case longest:
		return "no unused address is left; this one is free for the longest time"
	case expired:
		return fmt.Sprintf("free for the longest time; %q had it", g.of)
	case cooling:
		return fmt.Sprintf("nothing else is left; %q released it just now", g.of)
	case reassigned:
		return fmt.Sprintf("nothing else is left; it is kept for %q", g.of)
	}
	return ""
}

// Forecast returns the addresses that ADD would give now, with the reasons.
func (a *Allocator) Forecast(ctx context.Context, h *roles.Host, req *roles.Request) (*Forecast, error) {
	bySet, err := a.Plan.AddressRequests(req)
	if err != nil {
		return nil, err
	}
	grants, err := a.Preview(ctx, h, req, bySet)
	if err != nil {
		return nil, err
	}
	out := &Forecast{Network: req.Network}
	if a.Plan.Sticky != nil {
		out.Identity = a.Plan.Sticky.Identity(req, a.macOf(req))
	}
	for i, g := range grants {
		out.Addresses = append(out.Addresses, ForecastAddress{netip.PrefixFrom(g.addr, g.in.Subnet.Bits()), g.in.Gateway, g.reason(bySet[i])})
	}
	return out, nil
}

// forecast runs `cnibox ipam plan`.
func (r configured) forecast(ctx context.Context, h *roles.Host, flags map[string]string, files []string) (any, error) {
	if len(files) != 1 {
		return nil, errors.New("want FILE, such as one of /etc/cni/net.d")
	}
	name, a, err := r.confFile(ctx, h, files[0])
	if err != nil {
		return nil, err
	}
	args := []string{"IgnoreUnknown=1"}
	if pod := flags["pod"]; pod != "" {
		ns, name, ok := strings.Cut(pod, "/")
		if !ok {
			ns, name = "default", pod
		}
		args = append(args, "K8S_POD_NAMESPACE="+ns, "K8S_POD_NAME="+name)
	}
	for flag, key := range map[string]string{"mac": "MAC", "ip": "IP"} {
		if v := flags[flag]; v != "" {
			args = append(args, key+"="+v)
		}
	}
	req := &roles.Request{Verb: roles.Add, Network: name, ContainerID: flags["container"], IfName: flags["ifname"]}
	req.Args, err = roles.ParseArgs(strings.Join(args, ";"))
	if err != nil {
		return nil, err
	}
	return a.Forecast(ctx, h, req)
}

// configured reads configurations for the verbs.
type configured struct {
	// types are the accepted values of ipam.type.
	types []string
	read  Reader
}

// confFile reads the file of a list or of a plugin. It uses the first plugin with one
// of the types.
func (r configured) confFile(ctx context.Context, h *roles.Host, path string) (network string, a *Allocator, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err == nil && len(raw) > maxConf {
		err = fmt.Errorf("larger than %d bytes", maxConf)
	}
	if err == nil {
		network, a, err = r.confIn(ctx, h, raw)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%q: %w", path, err)
	}
	return network, a, nil
}

func (r configured) confIn(ctx context.Context, h *roles.Host, raw []byte) (network string, a *Allocator, err error) {
	network, conf, err := PluginConf(raw, r.types...)
	if err == nil {
		a, err = r.read(ctx, h, conf)
	}
	return network, a, err
}

// PluginConf returns the configuration of the first plugin in a list, or in a plugin's configuration, whose IPAM type is one of
// types, and the network's name.
func PluginConf(raw []byte, types ...string) (network string, merged []byte, err error) {
	var list struct {
		Name       json.RawMessage `json:"name"`
		CNIVersion json.RawMessage `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", nil, fmt.Errorf("%w: %w", roles.ErrDecode, roles.Mismatch(err))
	}
	level := []json.RawMessage{raw}
	for range 3 { // a list, its plugins, and the plugins of role chain
		var next []json.RawMessage
		for _, plugin := range level {
			var is struct {
				IPAM    struct{ Type string } `json:"ipam"`
				Plugins []json.RawMessage     `json:"plugins"`
			}
			conf := map[string]json.RawMessage{}
			if json.Unmarshal(plugin, &is) != nil {
				continue
			}
			next = append(next, is.Plugins...)
			if !slices.Contains(types, is.IPAM.Type) || json.Unmarshal(plugin, &conf) != nil {
				continue
			}
			for key, value := range map[string]json.RawMessage{"name": list.Name, "cniVersion": list.CNIVersion} {
				if len(value) > 0 {
					conf[key] = value
				}
			}
			if err := json.Unmarshal(list.Name, &network); err != nil {
				return "", nil, fmt.Errorf("%w: name: %w", roles.ErrConf, err)
			}
			merged, err := json.Marshal(conf)
			return network, merged, err
		}
		level = next
	}
	return "", nil, fmt.Errorf("%w: has no plugin with ipam.type %s", roles.ErrConf, "\""+strings.Join(types, "\" or \"")+"\"")
}

// poolOf returns the pool of the given configuration, else the only pool of the given
// network.
func (r configured) poolOf(ctx context.Context, h *roles.Host, flags map[string]string) (store.PoolID, *Plan, error) {
	if flags["conf"] != "" {
		network, a, err := r.confFile(ctx, h, flags["conf"])
		if err != nil {
			return store.PoolID{}, nil, err
		}
		return a.ID(network), a.Plan, nil
	}
	v, err := takeInventory(ctx, h, flags["network"])
	if err != nil {
		return store.PoolID{}, nil, err
	}
	if ids := v.pools(); len(ids) == 1 {
		return ids[0], nil, nil
	}
	return store.PoolID{}, nil, roles.Usagef("%w", errNoPool)
}
