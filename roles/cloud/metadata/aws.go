package metadata

import (
	"context"
	"strconv"
)

func aws() Provider {
	return cloud("aws", linkLocal, "Amazon EC2 (IMDSv2): secondary addresses and delegated prefixes (/28, /80) of each interface",
		"the interfaces have their primary addresses only: assign secondary addresses or prefixes (aws ec2 assign-private-ip-addresses, assign-ipv6-addresses)",
		readAWS)
}

// readAWS requests all interfaces. A missing value is a 404.
func readAWS(ctx context.Context, a *api) ([]nic, error) {
	a.login = token("X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token")
	return a.interfaces(ctx, func(k *keys, n *nic) {
		n.id = k.text(ctx, "interface-id")
		if device, err := strconv.Atoi(k.text(ctx, "device-number")); err == nil {
			n.device = device
		}
		n.network = append(k.list(ctx, "vpc-ipv4-cidr-blocks"), k.list(ctx, "vpc-ipv6-cidr-blocks")...)
		n.subnets = append(
			awsFamily(k.list(ctx, "subnet-ipv4-cidr-block"), k.list(ctx, "local-ipv4s"), k.list(ctx, "ipv4-prefix")),
			awsFamily(k.list(ctx, "subnet-ipv6-cidr-blocks"), k.list(ctx, "ipv6s"), k.list(ctx, "ipv6-prefix"))...)
	})
}

// awsFamily assigns addresses and prefixes to subnets. The first address is the interface's own.
func awsFamily(cidrs, addresses, prefixes []string) []subnet {
	h := newSubnetList(cidrs, "").ranges(prefixes)
	if len(addresses) == 0 {
		return h.subnets
	}
	return h.own(addresses[0]).addresses(addresses[1:]).subnets
}
