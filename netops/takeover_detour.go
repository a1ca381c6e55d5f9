package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// A port that is made, and one that is released, drops what comes in by it for a
// moment (br_add_if and del_nbp have it disabled). A lone packet that is lost stalls
// its connection for 200 ms, the least time after which TCP sends again. So what
// comes in for the node takes a detour meanwhile: a rule at the uplink's ingress,
// which is before the bridge, forwards it to one end of a veth pair whose other end
// is a port already. A kernel without that (nft_fwd_netdev) goes without.

// detourTable is the nftables table of that rule; a network namespace has one for
// each uplink.
const detourTable = "cnibox_takeover_"

// detourEnd names the veth pair's end that is a port, or with far the other one.
func (t *Takeover) detourEnd(far bool) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Bridge))
	end := "a"
	if far {
		end = "b"
	}
	return fmt.Sprintf("cnidt%08x%s", h.Sum32(), end)
}

// makeDetour makes the pair. The bridge has a carrier from then on.
func (r *takeoverRun) makeDetour(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil // nothing would tell of a pair that a killed process left
	}
	near, far := r.detourEnd(false), r.detourEnd(true)
	pair := &Link{
		In: Host, Shared: true, Name: near, Kind: "veth", MTU: r.up.MTU, Alias: r.alias(true),
		Peer: &Peer{In: Host, Name: far, MTU: r.up.MTU},
	}
	msgs, err := pair.create(ctx, r.session)
	if err != nil {
		return err
	}
	if err := r.send(ctx, piece{Step{VerbAdd, pair}, msgs}); err != nil {
		return err
	}
	for _, end := range []string{near, far} { // they say nothing of their own
		if err := r.changeOf(ctx, end, "net/ipv6/conf/%/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	off := false
	for _, l := range []*Link{
		{In: Host, Shared: true, Name: near, Master: r.Bridge, Up: true},
		{In: Host, Shared: true, Name: near, Port: &Port{Learning: &off}},
		{In: Host, Shared: true, Name: far, Up: true},
	} {
		m, err := l.set(ctx, r.session)
		if err != nil {
			return err
		}
		if err := r.send(ctx, piece{Step{VerbSet, l}, []nlconn.Message{m}}); err != nil {
			return err
		}
	}
	return r.awaitCarrier(ctx)
}

// removeDetour deletes the rule, if it is there still, and then the pair.
func (r *takeoverRun) removeDetour(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil
	}
	have, err := r.findLink(ctx, Host, r.detourEnd(false))
	if err != nil || have == nil || have.Kind != "veth" {
		return err
	}
	if err := r.straight(ctx); err != nil {
		return err
	}
	return r.send(ctx, r.deletion(have))
}

// detour leads what comes in by the uplink for the node to the pair.
func (r *takeoverRun) detour(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil
	}
	far, err := r.link(ctx, Host, r.detourEnd(true))
	if err != nil {
		return err
	}
	msgs, err := detourMessages(detourTable+r.Uplink, r.Uplink, far.Index)
	if err != nil {
		return err
	}
	err = r.rule(ctx, VerbAdd, msgs...)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// straight ends that.
func (r *takeoverRun) straight(ctx context.Context) error {
	m, err := nft.Table{Family: unix.NFPROTO_NETDEV, Name: detourTable + r.Uplink}.Message(unix.NFT_MSG_DELTABLE, 0)
	if err != nil {
		return err
	}
	if err := r.rule(ctx, VerbDel, m); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// rule makes one transaction about the rule.
func (r *takeoverRun) rule(ctx context.Context, v Verb, msgs ...nlconn.Message) error {
	st := Step{v, &Redirect{In: Host, Link: r.Uplink, To: r.detourEnd(false)}}
	if p := r.net.probe; p != nil {
		if err := p.Before(st); err != nil {
			return describeStep(st, err)
		}
	}
	conn, err := r.net.nft.Conn()
	if err != nil {
		return err
	}
	if err := conn.Commit(ctx, 0, msgs...); err != nil {
		return nlconn.Explain(err, fmt.Sprintf("nftables table netdev %s%s", detourTable, r.Uplink))
	}
	if p := r.net.probe; p != nil {
		p.After(st)
	}
	return nil
}

// detourMessages make a table with the rule "meta pkttype host fwd to LINK" at the
// ingress of a device. Broadcasts and multicasts take no detour: the bridge would
// send them back.
func detourMessages(table, device string, to int) ([]nlconn.Message, error) {
	const chain = "ingress"
	t := nft.Table{Family: unix.NFPROTO_NETDEV, Name: table}
	first, err := t.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	if err != nil {
		return nil, err
	}
	hook, err := nft.NewMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_CHAIN_TABLE, table)
		ae.String(unix.NFTA_CHAIN_NAME, chain)
		ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) error {
			ae.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_NETDEV_INGRESS)
			ae.Uint32(unix.NFTA_HOOK_PRIORITY, 0)
			ae.String(unix.NFTA_HOOK_DEV, device)
			return nil
		})
		ae.Uint32(unix.NFTA_CHAIN_POLICY, nft.VerdictAccept)
		ae.String(unix.NFTA_CHAIN_TYPE, "filter")
		return nil
	})
	if err != nil {
		return nil, err
	}
	rule, err := nft.NewMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_RULE_TABLE, table)
		ae.String(unix.NFTA_RULE_CHAIN, chain)
		ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) error {
			for _, e := range []expr.Any{
				&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: nft.FirstRegister},
				&expr.Cmp{Op: expr.CmpOpEq, Register: nft.FirstRegister, Data: []byte{unix.PACKET_HOST}},
				&expr.Immediate{Register: nft.FirstRegister, Data: binary.NativeEndian.AppendUint32(nil, uint32(to))},
			} {
				b, err := expr.Marshal(t.Family, e)
				if err != nil {
					return err
				}
				ae.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
			}
			ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
				ae.String(unix.NFTA_EXPR_NAME, "fwd")
				ae.Nested(unix.NFTA_EXPR_DATA, func(ae *netlink.AttributeEncoder) error {
					ae.Uint32(unix.NFTA_FWD_SREG_DEV, nft.FirstRegister)
					return nil
				})
				return nil
			})
			return nil
		})
		return nil
	})
	return []nlconn.Message{first, hook, rule}, err
}
