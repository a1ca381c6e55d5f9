package metadata

import "context"

func alibaba() Provider {
	return cloud("alibaba", "http://100.100.100.200", "Alibaba Cloud ECS: secondary addresses and prefixes of each interface",
		"the interfaces have their primary addresses only: assign secondary private addresses or prefixes to them",
		readAlibaba)
}

// readAlibaba requests all interfaces.
func readAlibaba(ctx context.Context, a *api) ([]nic, error) {
	a.login = token("X-aliyun-ecs-metadata-token-ttl-seconds", "X-aliyun-ecs-metadata-token")
	nics, err := a.interfaces(ctx, func(k *keys, n *nic) {
		n.id = k.text(ctx, "network-interface-id")
		n.network = append(k.list(ctx, "vpc-cidr-block"), k.list(ctx, "vpc-ipv6-cidr-blocks")...)
		n.subnets = append(
			alibabaFamily(k.text(ctx, "primary-ip-address"), k.text(ctx, "gateway"), k.list(ctx, "vswitch-cidr-block"), k.list(ctx, "private-ipv4s"), k.list(ctx, "ipv4-prefixes")),
			alibabaFamily("", k.text(ctx, "ipv6-gateway"), k.list(ctx, "vswitch-ipv6-cidr-block"), k.list(ctx, "ipv6s"), k.list(ctx, "ipv6-prefixes"))...)
	})
	if err != nil {
		return nil, err
	}
	dns, err := a.lines(ctx, "/latest/meta-data/dns-conf/nameservers")
	for i := range nics {
		nics[i].dns = dns
	}
	return nics, err
}

// alibabaFamily assigns addresses and prefixes to subnets. The list includes the primary address.
// For IPv6 the metadata has no separate key for the primary address.
func alibabaFamily(primary, gateway string, cidrs, addresses, prefixes []string) []subnet {
	h := newSubnetList(cidrs, gateway).ranges(prefixes)
	if primary == "" {
		return h.unmarked(addresses).subnets
	}
	return h.own(primary).addresses(addresses).subnets
}
