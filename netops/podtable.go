package netops

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// HasPodTable reports whether the table exists that enforces policies on pods.
func (n *Net) HasPodTable(ctx context.Context) (bool, error) {
	return n.nft.Exists(ctx, podtable.Table().Message(unix.NFT_MSG_GETTABLE, 0))
}

// Counter has the packets that a rule matched since it was made.
type Counter struct{ Packets, Bytes uint64 }

// PodCounters returns the counters of the rules of the table that enforces policies on pods, by chain. A rule without one has zeros.
func (n *Net) PodCounters(ctx context.Context) (map[string][]Counter, error) {
	type counted struct {
		chain string
		Counter
	}
	t := podtable.Table()
	all, err := nft.List(ctx, n.nft, t.RuleMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, ""), func(attrs []byte) (c counted, selected bool, err error) {
		var table string
		err = nlconn.EachAttr(attrs, func(kind uint16, value []byte) error {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = nlconn.Text(value)
			case unix.NFTA_RULE_CHAIN:
				c.chain = nlconn.Text(value)
			case unix.NFTA_RULE_EXPRESSIONS:
				return nlconn.EachAttr(value, func(_ uint16, expression []byte) error { return c.read(expression) })
			}
			return nil
		})
		return c, table == t.Name, err
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	counters := map[string][]Counter{}
	for _, c := range all {
		counters[c.chain] = append(counters[c.chain], c.Counter)
	}
	return counters, nlconn.Explain(err, "list the rules of "+t.String())
}

// read reads a counter from an expression of a rule.
func (c *Counter) read(expression []byte) error {
	name, err := nlconn.Find(expression, unix.NFTA_EXPR_NAME)
	if err != nil || nlconn.Text(name) != "counter" {
		return err
	}
	for kind, to := range map[uint16]*uint64{unix.NFTA_COUNTER_PACKETS: &c.Packets, unix.NFTA_COUNTER_BYTES: &c.Bytes} {
		value, err := nlconn.Find(expression, unix.NFTA_EXPR_DATA, kind)
		if err != nil {
			return err
		}
		if len(value) == 8 {
			*to = binary.BigEndian.Uint64(value)
		}
	}
	return nil
}

// ProtocolName returns the name of an IP protocol in lower case, or its number.
func ProtocolName(number uint8) string { return nft.ProtocolName(number) }
