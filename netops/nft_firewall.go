package netops

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// priorityFilter is NF_IP_PRI_FILTER of linux/netfilter_ipv4.h.
	priorityFilter = 0
	// ctDestinationNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
	ctDestinationNAT = 1 << 5
)

// firewallFeature keeps networks apart. From one closed device into another go
// replies and what was sent to a published port; from a device into itself
// whatever comes, unless it is isolated. What comes from elsewhere is not
// the policy's business. A drop here is final whatever other tables accept, an
// accept of ours would not be, so there is none.
func firewallFeature() nftFeature {
	table := inetTable()
	closed := &nftSet{table: table, name: "fw_closed", key: []field{ifName}}
	same := &nftSet{table: table, name: "fw_same", key: []field{ifName, ifName}}
	isolated := &nftSet{table: table, name: "fw_isolated", key: []field{ifName, ifName}}
	const answers = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	return nftFeature{
		table: table,
		sets:  []*nftSet{closed, same, isolated},
		chains: func() []nftChain {
			return []nftChain{{
				name: "forward", kind: "filter", hook: unix.NF_INET_FORWARD, priority: priorityFilter,
				rules: []nftRule{
					rule(outputLink(), in(closed), tracked(expr.CtKeySTATE, answers), returns()),
					rule(outputLink(), in(closed), tracked(expr.CtKeySTATUS, ctDestinationNAT), returns()),
					rule(inputLink(), outputLink(), in(isolated), drops()),
					rule(inputLink(), outputLink(), in(same), returns()),
					rule(inputLink(), in(closed), outputLink(), in(closed), drops()),
				},
			}}
		},
	}
}

// outputLink is oifname: the device that the packet leaves by.
func outputLink() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: b.take(ifName)})
	}
}

// tracked matches if what connection tracking knows has any of the bits.
func tracked(key expr.CtKey, bits uint32) rulePart {
	return func(b *ruleBuilder) {
		r := b.next
		b.exprs = append(b.exprs,
			&expr.Ct{Key: key, Register: r},
			&expr.Bitwise{
				SourceRegister: r, DestRegister: r, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: r, Data: make([]byte, 4)},
		)
	}
}
