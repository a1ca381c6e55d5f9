package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The bridge drops packets for a moment while a port is added or released,
// because br_add_if and del_nbp disable the port. One lost packet can stall its
// connection for 200 ms, the minimum retransmission timeout of TCP. Therefore a
// rule forwards packets to the node meanwhile: it is at the uplink's ingress
// hook, which runs before the bridge, and forwards to one end of a veth pair
// whose other end is already a port. If the kernel lacks nft_fwd_netdev, the
// takeover continues without the rule.

// detourTable is the prefix of the nftables table with the rule. The uplink's
// name follows, so that each uplink has its own table.
const detourTable = "cnibox_takeover_"

// detourEnd returns the name of the veth end that is a port, or with far of the
// other end.
func (t *Takeover) detourEnd(far bool) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Bridge))
	end := "a"
	if far {
		end = "b"
	}
	return fmt.Sprintf("cnidt%08x%s", h.Sum32(), end)
}

// makeDetour creates the veth pair. The bridge has a carrier from then on.
func (r *takeoverRun) makeDetour(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil // without the label, a pair of a killed process could not be found
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
	if err := r.send(ctx, stepRequests{Step{VerbAdd, pair}, msgs}); err != nil {
		return err
	}
	for _, end := range []string{near, far} { // without IPv6 the ends send no packets of their own
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
		m, err := l.setAt(ctx, r.session, 0)
		if err != nil {
			return err
		}
		if err := r.send(ctx, stepRequests{Step{VerbSet, l}, []nlconn.Message{m}}); err != nil {
			return err
		}
	}
	return r.awaitCarrier(ctx)
}

// removeDetour deletes the rule, if it still exists, and then the pair.
func (r *takeoverRun) removeDetour(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil
	}
	have, err := r.findLink(ctx, Host, r.detourEnd(false))
	if err != nil || have == nil || have.Kind != "veth" {
		return err
	}
	if err := r.removeRedirect(ctx); err != nil {
		return err
	}
	return r.send(ctx, r.deletion(have))
}

// addRedirect adds the rule that forwards packets for the node from the uplink to the
// pair.
func (r *takeoverRun) addRedirect(ctx context.Context) error {
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil
	}
	far, err := r.link(ctx, Host, r.detourEnd(true))
	if err != nil {
		return err
	}
	err = r.commitRedirect(ctx, VerbAdd, detourMessages(detourTable+r.Uplink, r.Uplink, far.Index)...)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// removeRedirect deletes the rule.
func (r *takeoverRun) removeRedirect(ctx context.Context) error {
	m := nft.Table{Family: unix.NFPROTO_NETDEV, Name: detourTable + r.Uplink}.Message(unix.NFT_MSG_DELTABLE, 0)
	if err := r.commitRedirect(ctx, VerbDel, m); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// commitRedirect sends one nftables transaction that adds or deletes the rule.
func (r *takeoverRun) commitRedirect(ctx context.Context, v Verb, msgs ...nlconn.Message) error {
	st := Step{v, &Redirect{In: Host, Link: r.Uplink, To: r.detourEnd(false)}}
	return r.probed(st, func() error {
		return nlconn.Explain(r.net.nft.Commit(ctx, 0, msgs...), fmt.Sprintf("nftables table netdev %s%s", detourTable, r.Uplink))
	})
}

// detourMessages creates a table with the rule "meta pkttype host fwd to LINK"
// at the ingress hook of a device. The rule excludes broadcasts and multicasts,
// because the bridge would send them back.
func detourMessages(table, device string, to int) []nlconn.Message {
	t := nft.Table{Family: unix.NFPROTO_NETDEV, Name: table}
	ingress := &nft.Chain{Name: "ingress", Kind: "filter", Hook: unix.NF_NETDEV_INGRESS, Device: device}
	forward := func(b *nft.Builder) {
		b.Immediate(nft.FirstRegister, binary.NativeEndian.AppendUint32(nil, uint32(to)))
		b.Add("fwd", func() { b.Net32(unix.NFTA_FWD_SREG_DEV, nft.FirstRegister) })
	}
	rule := nft.NewRule(nft.CompareMeta(unix.NFT_META_PKTTYPE, unix.NFT_CMP_EQ, []byte{unix.PACKET_HOST}), forward)
	return []nlconn.Message{t.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL), ingress.Message(t), rule.Message(t, ingress.Name)}
}
