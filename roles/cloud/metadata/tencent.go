package metadata

import (
	"context"
	"net/netip"
	"strings"
)

func tencent() Provider {
	return cloud("tencent", "http://169.254.0.23", "Tencent Cloud CVM: secondary addresses of each interface",
		"the interfaces have their primary addresses only: assign secondary private addresses to them",
		readTencent)
}

// maxTencent limits the addresses of an interface, because each needs two requests.
const maxTencent = 256

// readTencent requests all interfaces and their addresses.
func readTencent(ctx context.Context, a *api) ([]nic, error) {
	return a.interfaces(ctx, func(k *keys, n *nic) {
		own := k.text(ctx, "primary-local-ipv4")
		listed := k.list(ctx, "local-ipv4s/")
		for _, l := range listed[:min(len(listed), maxTencent)] {
			addr, err := netip.ParseAddr(strings.TrimSuffix(l, "/"))
			if err != nil {
				continue // a directory may have other entries
			}
			at := "local-ipv4s/" + addr.String() + "/"
			s := subnet{prefix: withMask(addr.String(), k.text(ctx, at+"subnet-mask")), gateway: k.text(ctx, at+"gateway")}
			if addr.String() == own {
				s.own = []string{own}
			} else {
				s.addresses = []string{addr.String()}
			}
			n.subnets = append(n.subnets, s)
		}
	})
}
