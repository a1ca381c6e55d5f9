package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// maxConf bounds a configuration file.
const maxConf = 1 << 20

// Foreseen is the answer of `cnibox ipam plan`.
type Foreseen struct {
	Network string `json:"network"`
	// Identity is whom the addresses would be kept for; empty where they do not stick.
	Identity  string            `json:"identity,omitempty"`
	Addresses []ForeseenAddress `json:"addresses"`
}

// ForeseenAddress is an address that an ADD would give now.
type ForeseenAddress struct {
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Why     string       `json:"why"`
}

// Table shows the addresses.
func (f *Foreseen) Table() (head []string, rows [][]string) {
	for _, a := range f.Addresses {
		gw := "-"
		if a.Gateway.IsValid() {
			gw = a.Gateway.String()
		}
		rows = append(rows, []string{a.Address.String(), gw, a.Why})
	}
	return []string{"ADDRESS", "GATEWAY", "WHY"}, rows
}

// why words a grant's origin.
func (g grant) why(req request) string {
	switch g.origin {
	case requested:
		return "asked for by " + req.path
	case kept:
		return fmt.Sprintf("kept for %q", g.of)
	case unused:
		return "the next that nobody is known to have had"
	case expired:
		return fmt.Sprintf("free for longest; %q had it", g.of)
	case cooling:
		return fmt.Sprintf("nothing else is left; %q released it just now", g.of)
	case given:
		return fmt.Sprintf("nothing else is left; it is kept for %q", g.of)
	}
	return ""
}

// Foresee tells which addresses an ADD would give now, and why.
func (a *handler) Foresee(ctx context.Context, h *roles.Host, req *roles.Request) (*Foreseen, error) {
	bySet, err := a.requests(req)
	if err != nil {
		return nil, err
	}
	grants, err := a.preview(ctx, h, req)
	if err != nil {
		return nil, a.explain(ctx, h, req.Network, err)
	}
	out := &Foreseen{Network: req.Network}
	if a.plan.sticky != nil {
		out.Identity = a.plan.sticky.Identity(req, a.macOf(req))
	}
	for i, g := range grants {
		out.Addresses = append(out.Addresses, ForeseenAddress{netip.PrefixFrom(g.addr, g.in.subnet.Bits()), g.in.gateway, g.why(bySet[i])})
	}
	return out, nil
}

// foresee is `cnibox ipam plan`.
func foresee(ctx context.Context, h *roles.Host, flags map[string]string, files []string) (any, error) {
	if len(files) != 1 {
		return nil, errors.New("want FILE, such as one of /etc/cni/net.d")
	}
	name, a, err := confFile(files[0])
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
	if req.Args, err = roles.ParseArgs(strings.Join(args, ";")); err != nil {
		return nil, err
	}
	return a.Foresee(ctx, h, req)
}

// confFile reads the first host-local configuration of a list's file, or of a
// plugin's.
func confFile(path string) (network string, a *handler, err error) {
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
		network, a, err = confIn(raw)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%q: %w", path, err)
	}
	return network, a, nil
}

func confIn(raw []byte) (network string, a *handler, err error) {
	var list struct {
		Name       json.RawMessage   `json:"name"`
		CNIVersion json.RawMessage   `json:"cniVersion"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", nil, fmt.Errorf("%w: %w", roles.ErrDecode, roles.Mismatch(err))
	}
	for _, plugin := range append(list.Plugins, raw) {
		conf := map[string]json.RawMessage{}
		var is struct {
			IPAM struct{ Type string } `json:"ipam"`
		}
		if json.Unmarshal(plugin, &is) != nil || is.IPAM.Type != "host-local" || json.Unmarshal(plugin, &conf) != nil {
			continue
		}
		for key, value := range map[string]json.RawMessage{"name": list.Name, "cniVersion": list.CNIVersion} {
			if len(value) > 0 {
				conf[key] = value
			}
		}
		merged, err := json.Marshal(conf)
		if err != nil {
			return "", nil, err
		}
		if a, err = newHandler(merged); err != nil {
			return "", nil, err
		}
		err = json.Unmarshal(list.Name, &network)
		return network, a, err
	}
	return "", nil, fmt.Errorf("%w: has no plugin with ipam.type %q", roles.ErrConf, "host-local")
}

// poolOf tells which pool is meant: that of a configuration, else the only one
// of a network.
func poolOf(ctx context.Context, h *roles.Host, flags map[string]string) (store.PoolID, *plan, error) {
	if flags["conf"] != "" {
		network, a, err := confFile(flags["conf"])
		if err != nil {
			return store.PoolID{}, nil, err
		}
		return a.poolID(network), a.plan, nil
	}
	v, err := takeInventory(ctx, h, flags["network"])
	if err != nil {
		return store.PoolID{}, nil, err
	}
	if ids := v.pools(); len(ids) == 1 {
		return ids[0], nil, nil
	}
	return store.PoolID{}, nil, errNoPool
}
