package dhcp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

const (
	// defaultLease is the duration of a lease if the server does not state one.
	defaultLease = time.Hour
	// minLease bounds the rate of renewals if a server leases for less.
	minLease = time.Second
	// infinite is the duration of a lease that does not expire.
	infinite = math.MaxUint32 * time.Second
	// minMTU is the smallest MTU that IPv4 allows (RFC 791).
	minMTU = 68
	// maxMTU is the largest MTU that the kernel accepts for a route.
	maxMTU = 65520
)

// grant4 returns the grant of a DHCPACK. Its times begin at start, when the request was sent.
func (w *profile) grant4(ack *reply, start time.Time) (*store.DHCPGrant, error) {
	mask := ack.SubnetMask()
	ones, bits := mask.Size()
	if len(mask) == 0 {
		return nil, fmt.Errorf("server %s sent no subnet mask: add {\"option\": \"subnet-mask\"} to ipam.request, or ask the server's operator", ack.ServerIdentifier())
	}
	if bits != 32 || ones == 0 {
		return nil, fmt.Errorf("server %s sent the invalid subnet mask %s", ack.ServerIdentifier(), mask)
	}
	addr, _ := netip.AddrFromSlice(ack.YourIPAddr.To4())
	g := &store.DHCPGrant{
		Family: protocol.IPv4, Address: netip.PrefixFrom(addr, ones), MAC: ack.ClientHWAddr.String(),
		Server: ack.ServerIdentifier().String(), ServerMAC: ack.mac.String(),
	}
	lease := ack.IPAddressLeaseTime(defaultLease)
	setTimes(g, start, lease, ack.IPAddressRenewalTime(lease/2), ack.IPAddressRebindingTime(lease*7/8))
	var err error
	g.Result, err = json.Marshal(w.result4(ack, g.Address))
	return g, err
}

// setTimes sets T1, T2 and the end of a lease. It replaces contradictory times by the
// defaults of RFC 2131, section 4.4.5.
func setTimes(g *store.DHCPGrant, start time.Time, lease, t1, t2 time.Duration) {
	start = start.UTC()
	g.Start = start
	if lease >= infinite {
		g.Renew, g.Rebind, g.Expire = time.Time{}, time.Time{}, time.Time{}
		return
	}
	lease = max(lease, minLease)
	if t1 <= 0 || t1 >= lease {
		t1 = lease / 2
	}
	if t2 <= t1 || t2 >= lease {
		t2 = max(lease*7/8, t1)
	}
	g.Renew, g.Rebind, g.Expire = start.Add(t1), start.Add(t2), start.Add(lease)
}

// result4 returns the CNI result of a DHCPACK.
func (w *profile) result4(ack *reply, addr netip.Prefix) *roles.Result {
	ip := &types100.IPConfig{Address: roles.IPNet(addr)}
	routers := hosts4(ack.Router())
	routers = slices.DeleteFunc(routers, func(r net.IP) bool { return !canRoute(addr, r) })
	if len(routers) > 0 {
		ip.Gateway = routers[0]
	}
	routes, unusual := reachable4(addr, routes4(ack, routers))
	w.logged.Do(func() {
		for _, o := range unusual {
			w.log.Info("a route of the server is unusual", "server", ack.ServerIdentifier(), "route", o)
		}
	})
	res := &roles.Result{CNIVersion: roles.ResultVersion, IPs: []*types100.IPConfig{ip}, Routes: routes}
	for _, r := range res.Routes {
		r.Priority = w.conf.IPAM.Priority
		if slices.Contains(w.conf.Requested(), protocol.OptionInterfaceMTU) {
			r.MTU = mtu(ack)
		}
	}
	for _, s := range hosts4(ack.DNS()) {
		res.DNS.Nameservers = append(res.DNS.Nameservers, s.String())
	}
	if d := strings.TrimRight(ack.DomainName(), "\x00"); isDomain(d) {
		res.DNS.Domain = d
	}
	if search := ack.DomainSearch(); search != nil {
		res.DNS.Search = domains(search.Labels)
	}
	return res
}

// hosts4 returns the addresses that a host can have.
func hosts4(ips []net.IP) []net.IP {
	var out []net.IP
	for _, ip := range ips {
		if isHost4(ip) {
			out = append(out, ip.To4())
		}
	}
	return out
}

// mtu returns option 26, or 0 if it is absent or invalid.
func mtu(ack *reply) int {
	b := ack.Options.Get(dhcpv4.OptionInterfaceMTU)
	if len(b) != 2 || binary.BigEndian.Uint16(b) < minMTU {
		return 0
	}
	return min(int(binary.BigEndian.Uint16(b)), maxMTU)
}

// domains returns the names that a resolver's configuration can contain.
func domains(names []string) []string {
	var out []string
	for _, n := range names {
		if isDomain(n) {
			out = append(out, n)
		}
	}
	return out
}

// isDomain reports whether a name consists of letters, digits, hyphens, underscores and
// dots. A resolver would read other characters as the end of the name.
func isDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for _, c := range []byte(s) {
		if c != '-' && c != '.' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}
