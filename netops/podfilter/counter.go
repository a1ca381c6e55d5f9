package podfilter

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// Exists reports whether the table exists in the network namespace of the calling thread.
func Exists(ctx context.Context) (exists bool, err error) {
	c := nft.New(podtable.Schema, nil)
	exists, err = c.Exists(ctx, podtable.Table().Message(unix.NFT_MSG_GETTABLE, 0))
	return exists, errors.Join(err, c.Close())
}

// Counter has the packets that a rule matched since it was made.
type Counter struct{ Packets, Bytes uint64 }

// Counters returns the counters of the rules of the table in the network namespace of the calling thread, by chain. A rule without one has
// zeros.
func Counters(ctx context.Context) (map[string][]Counter, error) { return countersOf(ctx, "") }

// DeniedPackets returns the counter of what all policies of the table in the network namespace of the calling thread denied.
func DeniedPackets(ctx context.Context) (sum Counter, err error) {
	all, err := countersOf(ctx, Deny)
	for _, c := range all[Deny] {
		sum.Packets, sum.Bytes = sum.Packets+c.Packets, sum.Bytes+c.Bytes
	}
	return sum, err
}

// countersOf returns the counters of the rules of a chain, or of all chains.
func countersOf(ctx context.Context, chain string) (map[string][]Counter, error) {
	type counted struct {
		chain string
		Counter
	}
	t := podtable.Table()
	client := nft.New(podtable.Schema, nil)
	defer client.Close() //nolint:errcheck // it only reads
	all, err := nft.List(ctx, client, t.RuleMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, chain), func(attrs []byte) (c counted, selected bool, err error) {
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
