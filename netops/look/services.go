package look

import (
	"context"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The services of kube-proxy: the chain of its iptables backend in the tables nat and filter, and
// the maps of its nftables backend.
const (
	kubeProxyTable = "kube-proxy"
	serviceChain   = "KUBE-SERVICES"
	serviceMap     = "service-ips"
	noEndpointsMap = "no-endpoint-services"
)

// Service returns the endpoints to which kube-proxy translates the address of a service, and
// whether it is one. Port 0 is any port. A service without endpoints has none.
func Service(ctx context.Context, n *netops.Net, to netip.AddrPort) (all []netip.AddrPort, found bool, err error) {
	defer func() { err = nlconn.Explain(err, "read the services of kube-proxy") }()
	tables := n.FilterTables()
	f := serviceFinder{Tables: tables, ctx: ctx, to: to, address: nft.IP4Addr}
	if to.Addr().Is6() {
		f.address = nft.IP6Addr
	}
	family := iptables.FamilyOf(to.Addr().Is6())
	for _, name := range []string{"nat", "filter"} { // the filter refuses services without endpoints
		table := nft.Table{Family: family, Name: name}
		rules, err := f.rules(table, serviceChain)
		if err != nil {
			return nil, false, err
		}
		for _, r := range rules {
			if f.matches(r) {
				found = true
				f.follow(table, r.Jump)
			}
		}
	}
	for _, name := range []string{serviceMap, noEndpointsMap} {
		table := nft.Table{Family: family, Name: kubeProxyTable}
		s := &nft.Set{Table: table, Name: name, Key: []nft.Field{f.address, nft.InetProto, nft.InetService}, Data: []nft.Field{nft.Verdict}}
		services, err := tables.NFT.ListSet(ctx, s)
		if err != nil {
			return nil, false, err
		}
		for _, e := range services {
			if e.Key[0] == to.Addr().String() && (to.Port() == 0 || e.Key[2] == strconv.Itoa(int(to.Port()))) {
				found = true
				f.follow(table, nft.JumpTarget(e.Value[0]))
			}
		}
	}
	sorting.Func(f.all, netip.AddrPort.Compare)
	return f.all, found, f.err
}

// serviceFinder collects the endpoints of a service.
type serviceFinder struct {
	*iptables.Tables
	ctx     context.Context
	to      netip.AddrPort
	address nft.Field
	chains  []string // those that were read
	all     []netip.AddrPort
	err     error
}

// rules reads the rules of a chain. An absent one has none.
func (f *serviceFinder) rules(table nft.Table, chain string) ([]*iptables.HeldRule, error) {
	return nft.Rules(f.ctx, f.NFT, table, chain, iptables.ReadRule)
}

// matches reports whether a rule of the iptables backend is about the service.
func (f *serviceFinder) matches(r *iptables.HeldRule) bool {
	isPort := f.to.Port() == 0 || slices.ContainsFunc(r.Ports, func(p iptables.PortRange) bool { return p.First <= f.to.Port() && f.to.Port() <= p.Last })
	return r.Destination == netip.PrefixFrom(f.to.Addr(), f.to.Addr().BitLen()) && isPort
}

// follow collects the destinations that a chain sets, and those to which it jumps.
func (f *serviceFinder) follow(table nft.Table, chain string) {
	if chain == "" || f.err != nil || slices.Contains(f.chains, chain) {
		return
	}
	f.chains = append(f.chains, chain)
	rules, err := f.rules(table, chain)
	f.err = err
	for _, r := range rules {
		f.add(r.DNAT)
		if r.Lookup != "" && slices.Contains(r.Shape, "nat") {
			f.addMap(table, r.Lookup)
		}
		f.follow(table, r.Jump)
	}
}

// addMap adds the endpoints of "dnat to numgen random mod 2 map { 0 : 10.0.0.1 . 80, … }".
func (f *serviceFinder) addMap(table nft.Table, name string) {
	s := &nft.Set{Table: table, Name: name, Key: []nft.Field{nft.PacketMark}, Data: []nft.Field{f.address, nft.InetService}}
	elements, err := f.NFT.ListSet(f.ctx, s)
	if err != nil {
		f.err = err
		return
	}
	for _, e := range elements {
		a, _ := netip.ParseAddr(e.Value[0])
		port, _ := strconv.ParseUint(e.Value[1], 10, 16)
		f.add(netip.AddrPortFrom(a, uint16(port)))
	}
}

func (f *serviceFinder) add(a netip.AddrPort) {
	if a.Addr().IsValid() && !slices.Contains(f.all, a) {
		f.all = append(f.all, a)
	}
}

// HasKubeProxy reports whether kube-proxy's rules are there, of any backend.
func HasKubeProxy(ctx context.Context, n *netops.Net) (bool, error) {
	all := n.FilterTables()
	for _, family := range iptables.Families() {
		tables, err := all.NFT.Tables(ctx, family)
		if err != nil || slices.Contains(tables, kubeProxyTable) {
			return err == nil, err
		}
		for _, t := range []iptables.Table{all.Native(nft.Table{Family: family, Name: "nat"}), all.Legacy(family, "nat")} {
			if has, err := t.Has(ctx, serviceChain); err != nil || has {
				return has, err
			}
		}
	}
	return false, nil
}
