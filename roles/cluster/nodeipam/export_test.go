//go:build kube

package nodeipam

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// BlockScript makes random changes of blocks, and has them with their results as the program cidrset reads and prints them.
type BlockScript struct {
	Ops, Results []string
	b            *blocks
	held         []netip.Prefix
}

func NewBlockScript(tb testing.TB, network string, length int) *BlockScript {
	tb.Helper()
	return &BlockScript{b: newTestBlocks(tb, network, length)}
}

// Step makes one change.
func (s *BlockScript) Step(random *rand.Rand) {
	result := "ok"
	switch op := random.IntN(5); {
	case op < 3:
		s.Ops = append(s.Ops, "take")
		p, ok := s.b.take()
		result = p.String()
		if ok {
			s.held = append(s.held, p)
		} else {
			result = "error"
		}
	case op == 3 && len(s.held) > 0:
		at := random.IntN(len(s.held))
		s.Ops = append(s.Ops, "release "+s.held[at].String())
		s.b.release(s.held[at])
		s.held = slices.Delete(s.held, at, at+1)
	default:
		p := s.b.block(random.IntN(s.b.Max))
		if length := p.Bits() - random.IntN(3); length > s.b.network.Bits() {
			p = netip.PrefixFrom(p.Addr(), length).Masked()
		}
		if slices.ContainsFunc(s.held, p.Overlaps) {
			return
		}
		s.Ops = append(s.Ops, "occupy "+p.String())
		s.b.occupy(p)
		s.held = append(s.held, p)
	}
	s.Results = append(s.Results, result)
}
