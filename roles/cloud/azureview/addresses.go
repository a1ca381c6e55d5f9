package azureview

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// wholeRange is the largest number of addresses of a range that is written completely:
// azure's form has single addresses only. Of a larger range those in use are written.
const wholeRange = 256

// pool is one subnet of the cloud's, of whichever source and interface.
type pool struct {
	mac     string
	primary bool
	gateway netip.Addr
	// addresses are sorted, each once.
	addresses []address
	used      bool
}

// address is one of a pool; container is empty for a free one.
type address struct {
	addr      netip.Addr
	container string
}

func (a address) compare(o address) int { return a.addr.Compare(o.addr) }

// sort sorts addresses; a cloud's are sorted already.
func (p *pool) sort() {
	if !slices.IsSortedFunc(p.addresses, address.compare) {
		sorting.Func(p.addresses, address.compare)
	}
	p.addresses = slices.CompactFunc(p.addresses, func(a, b address) bool { return a.addr == b.addr })
}

// put records the owner of an address.
func (p *pool) put(a netip.Addr, container string) {
	i, ok := slices.BinarySearchFunc(p.addresses, address{addr: a}, address.compare)
	if !ok {
		p.addresses = slices.Insert(p.addresses, i, address{addr: a})
	}
	p.addresses[i].container, p.used = container, true
}

// inventory is what azure-vnet-ipam.json is made of.
type inventory struct {
	revision store.Revision
	pools    map[netip.Prefix]*pool
	// masters are the names of interfaces by hardware address, from the attachments.
	masters map[string]string
	// asked counts the attachments that were asked for one.
	asked map[string]int
}

// maxAsked bounds how many records are decoded in search of an interface's name;
// the kernel is asked then.
const maxAsked = 2

func newInventory() *inventory {
	return &inventory{pools: map[netip.Prefix]*pool{}, masters: map[string]string{}, asked: map[string]int{}}
}

// read fills the inventory. Its error is about single records.
func (inv *inventory) read(tx *store.Tx) error {
	sources, err := tx.CloudSources()
	for i := range sources {
		inv.add(&sources[i])
	}
	return errors.Join(err, inv.lease(tx))
}

// nameInterfaces reads the names from the kernel that no attachment gave.
func (inv *inventory) nameInterfaces(ctx context.Context, h *roles.Host) error {
	if !inv.nameless() {
		return nil
	}
	links, err := h.Net.Links(ctx, nil)
	for mac, nic := range attachment.NICs(links) {
		inv.masters[mac] = nic.Name
	}
	return err
}

// view makes azure-vnet-ipam.json.
func (inv *inventory) view(h *roles.Host, now time.Time) ([]byte, error) {
	pools := map[string]poolInfo{}
	prefixes := slices.Collect(maps.Keys(inv.pools))
	sorting.Func(prefixes, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	var lists [][]byte
	for _, prefix := range prefixes {
		p := inv.pools[prefix]
		pools[prefix.String()] = poolInfo{
			ID: prefix.String(), IfName: inv.masters[p.mac], Subnet: netOf(prefix), Gateway: p.gateway.WithZone(""),
			IsIPv6: prefix.Addr().Is6(), Priority: oneIf(!p.primary), RefCount: oneIf(p.used),
		}
		lists = append(lists, p.text())
	}
	doc := document{IPAM: &ipamPart{
		header: headerOf(h, now), AddressSpaces: map[string]addressSpace{"local": {ID: "local", Pools: pools}},
	}}
	return doc.encode(h, inv.revision, "Addresses", lists)
}

// text has addressRecords of azure's, in the order of addresses.
func (p *pool) text() (b []byte) {
	for i, a := range p.addresses {
		if i > 0 {
			b = append(b, ',')
		}
		text := a.addr.WithZone("").String()
		b = append(append(append(append(b, memberLine...), '"'), text...), "\": {"+fieldLine+"\"ID\": "...)
		b = append(appendQuoted(b, a.container), ","+fieldLine+"\"Addr\": \""...)
		b = append(append(b, text...), "\","+fieldLine+"\"InUse\": "...)
		b = append(strconv.AppendBool(b, a.container != ""), memberLine+"}"...)
	}
	return b
}

// add adds the subnets of a source. A subnet of two sources is one pool.
func (inv *inventory) add(source *store.CloudSource) {
	for _, nic := range source.NICs {
		for _, s := range nic.Subnets {
			if !s.Prefix.IsValid() {
				continue
			}
			p := inv.pools[s.Prefix]
			if p == nil {
				p = &pool{mac: nic.MAC, primary: nic.Primary, gateway: s.Gateway}
				inv.pools[s.Prefix] = p
			}
			p.addresses = slices.Grow(p.addresses, len(s.Addresses))
			for _, a := range s.Addresses {
				p.addresses = append(p.addresses, address{addr: a})
			}
			for _, r := range s.Ranges {
				if r.IsValid() && r.Addr().BitLen()-r.Bits() <= 8 {
					for a, n := r.Masked().Addr(), 0; r.Contains(a) && n < wholeRange; a, n = a.Next(), n+1 {
						p.addresses = append(p.addresses, address{addr: a})
					}
				}
			}
			p.sort()
			p.addresses = slices.DeleteFunc(p.addresses, func(a address) bool { return slices.Contains(s.Own, a.addr) })
		}
	}
}

// lease records the owner of a lease's address.
func (inv *inventory) lease(tx *store.Tx) error {
	return tx.EachPool("", func(leases *store.Pool) error {
		if leases.ID().DataDir != store.CloudDataDir {
			return nil
		}
		for a, owner := range leases.Owners() {
			prefix, p := inv.poolOf(a)
			p.put(a, owner.ContainerID)
			if inv.masters[p.mac] == "" && inv.asked[p.mac] < maxAsked {
				inv.asked[p.mac]++
				inv.ask(tx, owner, p.mac)
			}
			inv.pools[prefix] = p
		}
		return nil
	})
}

// poolOf is the smallest pool that an address is in. If the cloud no longer lists the
// subnet, the address is a separate pool until it is released.
func (inv *inventory) poolOf(a netip.Addr) (netip.Prefix, *pool) {
	var best netip.Prefix
	for prefix := range inv.pools {
		if prefix.Contains(a) && (!best.IsValid() || prefix.Bits() > best.Bits()) {
			best = prefix
		}
	}
	if best.IsValid() {
		return best, inv.pools[best]
	}
	return netip.PrefixFrom(a, a.BitLen()), new(pool)
}

// anyMAC replaces the hardware address of a NIC if the cloud does not report it.
const anyMAC = "*"

// ask reads a NIC's name from the attachment of one of its addresses.
func (inv *inventory) ask(tx *store.Tx, owner store.Key, mac string) {
	a, err := tx.Attachment(owner)
	if err != nil {
		return
	}
	var n note
	if coldjson.Unmarshal(a.Note, &n) == nil && (n.MasterMAC == mac || mac == anyMAC) {
		inv.masters[mac] = n.Master
	}
}

// nameless reports whether a NIC has no name yet that the kernel may know.
func (inv *inventory) nameless() bool {
	for _, p := range inv.pools {
		if p.mac != "" && p.mac != anyMAC && inv.masters[p.mac] == "" {
			return true
		}
	}
	return false
}

func oneIf(v bool) int {
	if v {
		return 1
	}
	return 0
}
