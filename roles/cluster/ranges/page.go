package ranges

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store/cluster"
)

// pageBits is the number of host bits of a page: 256 addresses.
const pageBits = 8

// maxPages bounds the pages of a range. The rest of a range with more than 16 million addresses is not
// used.
const maxPages = 1 << 16

// page records the owners of 256 addresses with the same first bits. Blocks of different sizes cannot
// overlap, because a node takes a block by replacing the page that it has read.
type page struct {
	// Pool is "" for the pool that networks share.
	Pool string `json:"pool,omitempty"`
	// First is the page's first address.
	First netip.Addr `json:"first"`
	// Revision grows with each write, so that an older write, whose answer was lost, fails.
	Revision uint64 `json:"revision"`
	// Blocks are in the order of addresses and do not overlap.
	Blocks []block `json:"blocks"`
}

// block is a part of a page that a node has.
type block struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
	// Node is empty for an address of a reservation. Reserved is the reservation's ID.
	Node     string `json:"node,omitempty"`
	Reserved string `json:"reserved,omitempty"`
	// Machine differs between two machines with the same node name. It is "" while addresses of the block move from
	// whereabouts to the node, or back. The node then does not use the block.
	Machine string    `json:"machine,omitempty"`
	Since   time.Time `json:"since"`
	// Claim is set by another node that wants the block because it finds no record of Node. The owner
	// removes it. A claim that was not removed for the grace period permits another node to take the block.
	Claim string `json:"claim,omitempty"`
	// Holders are the containers whose addresses move.
	Holders []container `json:"holders,omitempty"`
}

// container has an address that moves from whereabouts, or back.
type container struct {
	Address     netip.Addr `json:"address"`
	ContainerID string     `json:"containerId"`
	IfName      string     `json:"ifName,omitempty"`
	// Pod is NAMESPACE/NAME.
	Pod string `json:"pod,omitempty"`
}

func (b *block) interval() leasing.Interval { return leasing.Interval{Lo: b.First, Hi: b.Last} }

// pageOf returns the first address of an address's page.
func pageOf(a netip.Addr) netip.Addr {
	p, _ := a.Prefix(a.BitLen() - pageBits)
	return p.Addr()
}

// pageName returns the name of a page in the registry.
func pageName(pool string, first netip.Addr) string {
	name := strings.NewReplacer(".", "-", ":", "-").Replace(first.StringExpanded())
	if pool == "" {
		return name
	}
	sum := sha256.Sum256([]byte(pool))
	return hex.EncodeToString(sum[:8]) + "-" + name
}

func (p *page) name() string { return pageName(p.Pool, p.First) }

// decodePage decodes a page of the registry. A page that other programs damaged is an error, because it
// may hide owners.
func decodePage(name string, raw []byte) (*page, error) {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("page %s of ranges: %w: %s", name, cluster.ErrInvalid, fmt.Sprintf(format, args...))
	}
	if len(raw) == 0 {
		return nil, fault("it is empty or not readable")
	}
	if len(raw) > cluster.MaxPage {
		return nil, fault("larger than %d bytes", cluster.MaxPage)
	}
	var p page
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fault("%v", err)
	}
	if !p.First.IsValid() || p.First.Is4In6() || p.First.Zone() != "" || p.First != pageOf(p.First) || p.name() != name {
		return nil, fault("it is of %s in pool %.80q", p.First, p.Pool)
	}
	var last netip.Addr
	for _, b := range p.Blocks {
		switch {
		case pageOf(b.First) != p.First || pageOf(b.Last) != p.First || b.First.Zone()+b.Last.Zone() != "" || b.Last.Less(b.First):
			return nil, fault("%s-%s is not a block", b.First, b.Last)
		case last.IsValid() && !last.Less(b.First):
			return nil, fault("block %s is not after %s", b.First, last)
		case b.Reserved != "" && b.First == b.Last && b.Node == "":
		case cluster.CheckName(b.Node) != nil:
			return nil, fault("block %s: %v", b.First, cluster.CheckName(b.Node))
		case slices.ContainsFunc(b.Holders, func(h container) bool { return !b.interval().Contains(h.Address) }):
			return nil, fault("block %s has no such addresses as those of its containers", b.First)
		}
		last = b.Last
	}
	return &p, nil
}

// add adds a block in the order of addresses.
func (p *page) add(b block) {
	at := 0
	for at < len(p.Blocks) && p.Blocks[at].First.Less(b.First) {
		at++
	}
	p.Blocks = append(p.Blocks, block{})
	copy(p.Blocks[at+1:], p.Blocks[at:])
	p.Blocks[at] = b
}

// encode returns the page's JSON. decodePage accepts it.
func (p *page) encode() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(p)
	if err == nil && out.Len() > cluster.MaxPage {
		err = fmt.Errorf("%w: larger than %d bytes", cluster.ErrInvalid, cluster.MaxPage)
	}
	return out.Bytes(), err
}

// free returns the parts of the intervals in the page that no node has.
func (p *page) free(of []leasing.Interval) (out []leasing.Interval) {
	cuts := make([]leasing.Interval, 0, len(p.Blocks))
	for i := range p.Blocks {
		cuts = append(cuts, p.Blocks[i].interval())
	}
	for _, i := range leasing.Within(of, leasing.Whole(netip.PrefixFrom(p.First, p.First.BitLen()-pageBits))) {
		out = append(out, leasing.Subtract(i, cuts)...)
	}
	return out
}

// hasFree reports whether at least one n-th of the addresses of intervals in the page is free.
func (p *page) hasFree(of []leasing.Interval, n uint64) bool {
	whole := leasing.Whole(netip.PrefixFrom(p.First, p.First.BitLen()-pageBits))
	return n*count(p.free(of)) >= count(leasing.Within(of, whole))
}

// pagesOf returns the first addresses of the pages of intervals in ascending order, at most maxPages.
func pagesOf(of []leasing.Interval) (out []netip.Addr) {
	for _, i := range of {
		for a := pageOf(i.Lo); a.Compare(i.Hi) <= 0 && len(out) < maxPages; {
			if len(out) == 0 || out[len(out)-1] != a {
				out = append(out, a)
			}
			last := leasing.Whole(netip.PrefixFrom(a, a.BitLen()-pageBits)).Hi
			if a = last.Next(); !a.IsValid() {
				break
			}
		}
	}
	return out
}
