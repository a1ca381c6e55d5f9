package refplugins

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The services of kube-proxy: the chain of its iptables backend in the tables nat and filter, and
// the maps of its nftables backend.
const (
	serviceChain   = "KUBE-SERVICES"
	serviceMap     = "service-ips"
	noEndpointsMap = "no-endpoint-services"
)

// Service returns the endpoints to which kube-proxy translates the address of a service, and
// whether it is one. Port 0 is any port. A service without endpoints has none.
func (n *Leftovers) Service(ctx context.Context, to netip.AddrPort) (all []netip.AddrPort, found bool, err error) {
	defer func() { err = nlconn.Explain(err, "read the services of kube-proxy") }()
	f := serviceFinder{ctx: ctx, nft: n.NFT, to: to, family: unix.NFPROTO_IPV4, address: nft.IP4Addr}
	if to.Addr().Is6() {
		f.family, f.address = unix.NFPROTO_IPV6, nft.IP6Addr
	}
	for _, name := range []string{"nat", "filter"} { // the filter refuses services without endpoints
		table := iptablesTable(f.family, name)
		rules, err := readRules(ctx, n.NFT, table, serviceChain)
		if err != nil {
			return nil, false, err
		}
		for i := range rules {
			if r := &rules[i]; f.matches(r) {
				found = true
				f.follow(table, r.jump)
			}
		}
	}
	for _, name := range []string{serviceMap, noEndpointsMap} {
		table := nft.Table{Family: f.family, Name: kubeProxyTable}
		s := &nft.Set{Table: table, Name: name, Key: []nft.Field{f.address, nft.InetProto, nft.InetService}, Data: []nft.Field{nft.Verdict}}
		services, err := n.NFT.ListSet(ctx, s)
		if err != nil {
			return nil, false, err
		}
		for _, e := range services {
			if e.Key[0] == to.Addr().String() && (to.Port() == 0 || e.Key[2] == strconv.Itoa(int(to.Port()))) {
				found = true
				f.follow(table, jumpOf(e.Value[0]))
			}
		}
	}
	sorting.Func(f.all, netip.AddrPort.Compare)
	return f.all, found, f.err
}

// serviceFinder collects the endpoints of a service.
type serviceFinder struct {
	ctx     context.Context
	nft     *nft.Client
	to      netip.AddrPort
	family  byte
	address nft.Field
	chains  []string // those that were read
	all     []netip.AddrPort
	err     error
}

// matches reports whether a rule of the iptables backend is about the service.
func (f *serviceFinder) matches(r *rule) bool {
	isPort := f.to.Port() == 0 || slices.ContainsFunc(r.ports, func(p portRange) bool { return p.first <= f.to.Port() && f.to.Port() <= p.last })
	return r.destination == netip.PrefixFrom(f.to.Addr(), f.to.Addr().BitLen()) && isPort
}

// follow collects the destinations that a chain sets, and those to which it jumps.
func (f *serviceFinder) follow(table nft.Table, chain string) {
	if chain == "" || f.err != nil || slices.Contains(f.chains, chain) {
		return
	}
	f.chains = append(f.chains, chain)
	rules, err := readRules(f.ctx, f.nft, table, chain)
	f.err = err
	for i := range rules {
		r := &rules[i]
		f.add(r.dnat)
		if r.lookup != "" && slices.Contains(r.shape, "nat") {
			f.addMap(table, r.lookup)
		}
		f.follow(table, r.jump)
	}
}

// addMap adds the endpoints of "dnat to numgen random mod 2 map { 0 : 10.0.0.1 . 80, … }".
func (f *serviceFinder) addMap(table nft.Table, name string) {
	s := &nft.Set{Table: table, Name: name, Key: []nft.Field{nft.PacketMark}, Data: []nft.Field{f.address, nft.InetService}}
	elements, err := f.nft.ListSet(f.ctx, s)
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

// destination reads the data of iptables' target DNAT: struct nf_nat_range or nf_nat_range2, or
// before iptables 1.8.8 for IPv4 struct nf_nat_ipv4_multi_range_compat of
// linux/netfilter/nf_nat.h.
func destination(info []byte, family byte) netip.AddrPort {
	at, size, port := 4, 4, 36
	switch {
	case family == unix.NFPROTO_IPV6:
		size = 16
	case len(info) < 36:
		at, port = 8, 16
	}
	if len(info) < port+2 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(info[at : at+size])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(info[port:]))
}
