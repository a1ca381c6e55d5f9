package refplugins

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Port is a port of the node that the reference's portmap translates to a
// container, or kube-proxy to a Service.
type Port struct {
	// NodePort reports that kube-proxy translates the port.
	NodePort bool
	// Proto is "tcp", "udp" or "sctp".
	Proto string
	Port  uint16
	// Node is the node's address of the mapping. The zero Addr means all
	// addresses of the family.
	Node netip.Addr
	// Network is "" for rules of the nftables backend, which do not name it.
	Network, ContainerID string
	// Chain names the chain of the rule: "chain hostports of nftables table ip
	// cni_hostport".
	Chain string
}

// Ports lists the wanted ports of one family that the reference's portmap
// translates to a container, or kube-proxy to a Service, with the nftables and the
// iptables backend. If neither was ever used, it costs one request.
func (n *Leftovers) Ports(ctx context.Context, is6 bool, wanted func(proto string, port uint16) bool) ([]Port, error) {
	f := &portFinder{family: unix.NFPROTO_IPV4, wanted: wanted}
	if is6 {
		f.family = unix.NFPROTO_IPV6
	}
	tables, err := n.NFT.Tables(ctx, f.family)
	if isWithoutNFT(err) {
		err = nil
	}
	if err == nil && slices.Contains(tables, hostPortTable(f.family).Name) {
		err = f.native(ctx, n.NFT)
	}
	if err == nil && slices.Contains(tables, kubeProxyTable) {
		err = f.nodePortMap(ctx, n.NFT)
	}
	if err == nil && slices.Contains(tables, "nat") {
		err = errors.Join(f.iptables(ctx, n.NFT), f.nodePortRules(ctx, n.NFT))
	}
	if err == nil {
		err = f.legacy(ctx, n)
	}
	return f.found, nlconn.Explain(err, "read host ports of other plugins")
}

// portFinder collects the ports of one family.
type portFinder struct {
	family byte
	wanted func(proto string, port uint16) bool
	found  []Port
}

// addPorts adds the wanted ports of some ranges to the result.
func (f *portFinder) addPorts(proto string, ports []portRange, like Port) {
	for _, r := range ports {
		for port := int(r.first); port <= int(r.last); port++ {
			if f.wanted(proto, uint16(port)) {
				like.Proto, like.Port = proto, uint16(port)
				f.found = append(f.found, like)
			}
		}
	}
}

// anyWanted reports whether a port of some ranges is wanted.
func (f *portFinder) anyWanted(proto string, ports []portRange) bool {
	probe := portFinder{family: f.family, wanted: f.wanted}
	probe.addPorts(proto, ports, Port{})
	return len(probe.found) > 0
}

// native reads the rules of the nftables backend.
func (f *portFinder) native(ctx context.Context, c *nft.Client) error {
	t := hostPortTable(f.family)
	rules, err := readRules(ctx, c, t, "hostports", "hostip_hostports")
	for i := range rules {
		r := &rules[i]
		f.addPorts(protocolName(r.proto), r.ports, Port{
			Node: singleAddr(r.destination), ContainerID: r.Comment, Chain: "chain " + r.Chain + " of nftables table " + t.String(),
		})
	}
	return err
}

// iptables reads the rules of the iptables backend. The jump to a container's
// chain has the network, the container and the ports. The chain has the node's
// addresses.
func (f *portFinder) iptables(ctx context.Context, c *nft.Client) error {
	t := iptablesTable(f.family, "nat")
	entries, err := readRules(ctx, c, t, hostPortChain)
	if err != nil {
		return err
	}
	read := map[string]bool{}
	for i := range entries {
		e := &entries[i]
		network, id, ok := parseComment(e.Comment)
		if !ok || read[e.jump] || e.jump != iptablesChain(hostPortPrefix, network, id) || !f.anyWanted(protocolName(e.proto), e.ports) {
			continue
		}
		read[e.jump] = true
		rules, err := readRules(ctx, c, t, e.jump)
		if err != nil {
			return err
		}
		for j := range rules {
			if r := &rules[j]; r.jump == "" { // the other rules mark the packet
				f.addPorts(protocolName(r.proto), r.ports, Port{
					Node: singleAddr(r.destination), Network: network, ContainerID: id, Chain: "chain " + e.jump + " of iptables table nat",
				})
			}
		}
	}
	return nil
}

// legacy reads the rules of iptables-legacy.
func (f *portFinder) legacy(ctx context.Context, n *Leftovers) error {
	if n.IPTables == nil || !iptables.IsLegacyLoaded(f.family, "nat") ||
		!iptables.LegacyMentions(f.family, "nat", hostPortChain) && !iptables.LegacyMentions(f.family, "nat", nodePortChain) {
		return nil
	}
	t := &iptables.Legacy{Family: f.family, Run: n.IPTables}
	listing, err := n.IPTables(ctx, t.Program(), []string{"-w", "-t", "nat", "-S"}, "")
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.Program(), err)
	}
	st := iptables.ParseListing(listing)
	f.legacyNodePorts(st)
	if st.Chains[hostPortChain] == nil {
		return nil
	}
	read := map[string]bool{}
	for _, e := range st.Chains[hostPortChain].Rules {
		network, id, ok := parseComment(e.Comment)
		chain := st.Chains[e.Target]
		if !ok || chain == nil || read[e.Target] || e.Target != iptablesChain(hostPortPrefix, network, id) {
			continue
		}
		read[e.Target] = true
		for _, r := range chain.Rules {
			port, err := strconv.ParseUint(legacyOption(r, "--dport"), 10, 16)
			if err != nil || r.Target != "DNAT" {
				continue
			}
			f.addPorts(legacyOption(r, "-p"), []portRange{{uint16(port), uint16(port)}}, Port{
				Node: legacyAddress(r, "-d"), Network: network, ContainerID: id, Chain: "chain " + e.Target + " of iptables-legacy's table nat",
			})
		}
	}
	return nil
}

// singleAddr returns the address of a prefix with one address, otherwise the zero
// Addr.
func singleAddr(p netip.Prefix) netip.Addr {
	if !p.IsSingleIP() {
		return netip.Addr{}
	}
	return p.Addr()
}

// protocolName returns the name of a protocol in port mappings, or "" for a
// protocol that cannot be mapped.
func protocolName(proto byte) string {
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		return nft.ProtocolName(proto)
	}
	return ""
}

const (
	// multiportSize is the size of struct xt_multiport_v1: flags, count, 15
	// ports, 15 flags for the first port of a range, invert.
	multiportSize = 48
	multiportMax  = 15
	// multiportSource is the value of flags for source ports only.
	multiportSource = 0
	// destinationPorts is the offset of the destination port range in struct
	// xt_tcp and struct xt_udp. In struct xt_sctp_info the offset is 0.
	destinationPorts = 4
)

// matchedPorts returns the destination ports that an iptables match accepts.
func matchedPorts(name string, info []byte) []portRange {
	at := func(offset int) uint16 { return binary.NativeEndian.Uint16(info[offset:]) }
	offset := destinationPorts
	switch name {
	case "sctp":
		offset = 0
	case "tcp", "udp":
	case "multiport":
		if len(info) < multiportSize || info[0] == multiportSource || info[multiportSize-1] != 0 {
			return nil
		}
		var all []portRange
		count := min(int(info[1]), multiportMax)
		for i := 0; i < count; i++ {
			r := portRange{at(2 + 2*i), at(2 + 2*i)}
			if info[2+2*multiportMax+i] != 0 && i+1 < count {
				i++
				r.last = at(2 + 2*i)
			}
			all = append(all, r)
		}
		return all
	default:
		return nil
	}
	if len(info) < offset+4 {
		return nil
	}
	return []portRange{{at(offset), at(offset + 2)}}
}
