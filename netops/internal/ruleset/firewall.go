package ruleset

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// ctDestinationNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctDestinationNAT = 1 << 5

// firewallFeature isolates networks from each other. From one closed device to
// another it passes only replies and packets to a published port. From a device
// to itself it passes everything, unless the device is isolated. It does not
// filter packets from other devices. A drop is final, whatever other tables
// accept. An accept would not be final, so there is none.
func firewallFeature() nft.Feature {
	table := inetTable()
	closed := &nft.Set{Table: table, Name: "fw_closed", Key: []nft.Field{nft.IfName}}
	same := &nft.Set{Table: table, Name: "fw_same", Key: []nft.Field{nft.IfName, nft.IfName}}
	isolated := &nft.Set{Table: table, Name: "fw_isolated", Key: []nft.Field{nft.IfName, nft.IfName}}
	const answers = 1<<1 | 1<<2 // established, related (NF_CT_STATE_BIT)
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{closed, same, isolated},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "forward", Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: nft.PriorityFilter,
				Rules: []nft.Rule{
					nft.NewRule(nft.OutputLink(), nft.In(closed), nft.Tracked(unix.NFT_CT_STATE, answers), nft.Return()),
					nft.NewRule(nft.OutputLink(), nft.In(closed), nft.Tracked(unix.NFT_CT_STATUS, ctDestinationNAT), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.OutputLink(), nft.In(isolated), nft.Drop()),
					nft.NewRule(nft.InputLink(), nft.OutputLink(), nft.In(same), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.In(closed), nft.OutputLink(), nft.In(closed), nft.Drop()),
				},
			}}
		},
	}
}
