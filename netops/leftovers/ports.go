package leftovers

import (
	"context"
	"net/netip"
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

// What kube-proxy translates for Services of type NodePort: a map of its nftables
// backend, or a chain of its iptables backend in table nat.
const (
	kubeProxyTable = "kube-proxy"
	kubeProxyMap   = "service-nodeports"
	nodePortChain  = "KUBE-NODEPORTS"
)

// Ports lists the wanted ports of one family that the reference's portmap
// translates to a container, or kube-proxy to a Service, with the nftables and the
// iptables backend. If neither was ever used, it costs one request.
func (n *Leftovers) Ports(ctx context.Context, is6 bool, wanted func(proto string, port uint16) bool) ([]Port, error) {
	f := &portFinder{Leftovers: n, family: iptables.FamilyOf(is6), wanted: wanted}
	return f.found, nlconn.Explain(f.find(ctx), "read host ports of other plugins")
}

// portFinder collects the ports of one family.
type portFinder struct {
	*Leftovers
	family byte
	wanted func(proto string, port uint16) bool
	found  []Port
}

func (f *portFinder) find(ctx context.Context) error {
	tables, err := f.NFT.Tables(ctx, f.family)
	if err != nil && !isWithoutTables(err) {
		return err
	}
	if slices.Contains(tables, hostPortTable(f.family).Name) {
		if err := f.native(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(tables, kubeProxyTable) {
		if err := f.nodePortMap(ctx); err != nil {
			return err
		}
	}
	nat := f.Named("nat", []byte{f.family}, hostPortChain, nodePortChain)
	if !slices.Contains(tables, "nat") {
		nat = nat[1:] // without that of iptables-nft
	}
	for _, t := range nat {
		if err := f.iptables(ctx, t); err != nil && !isWithoutTables(err) {
			return err
		}
	}
	return nil
}

// addPorts adds the wanted ports of some ranges to the result.
func (f *portFinder) addPorts(proto string, ports []iptables.PortRange, like Port) {
	for _, r := range ports {
		for port := int(r.First); port <= int(r.Last); port++ {
			if f.wanted(proto, uint16(port)) {
				like.Proto, like.Port = proto, uint16(port)
				f.found = append(f.found, like)
			}
		}
	}
}

// anyWanted reports whether a port of some ranges is wanted.
func (f *portFinder) anyWanted(proto string, ports []iptables.PortRange) bool {
	probe := portFinder{wanted: f.wanted}
	probe.addPorts(proto, ports, Port{})
	return len(probe.found) > 0
}

// native reads the rules of the nftables backend of portmap.
func (f *portFinder) native(ctx context.Context) error {
	t := hostPortTable(f.family)
	for _, chain := range []string{"hostports", "hostip_hostports"} {
		rules, err := f.rules(ctx, t, chain)
		if err != nil {
			return err
		}
		for _, r := range rules {
			f.addPorts(protocolName(r.Proto), r.Ports, Port{
				Node: singleAddr(r.Destination), ContainerID: r.Comment, Chain: "chain " + chain + " of " + f.Native(t).String(),
			})
		}
	}
	return nil
}

// nodePortMap reads the map of kube-proxy's nftables backend.
func (f *portFinder) nodePortMap(ctx context.Context) error {
	s := &nft.Set{
		Table: nft.Table{Family: f.family, Name: kubeProxyTable}, Name: kubeProxyMap,
		Key: []nft.Field{nft.InetProto, nft.InetService}, Data: []nft.Field{nft.Verdict},
	}
	all, err := f.NFT.ListSet(ctx, s)
	for _, e := range all {
		if port, err := strconv.ParseUint(e.Key[1], 10, 16); err == nil {
			f.addPorts(e.Key[0], []iptables.PortRange{{First: uint16(port), Last: uint16(port)}}, Port{NodePort: true, Chain: "map " + kubeProxyMap + " of " + f.Native(s.Table).String()})
		}
	}
	return err
}

// iptables reads the rules of the iptables backends. Those of kube-proxy are in one chain. For portmap, the jump to a container's
// chain has the network, the container and the ports, and the chain has the node's addresses.
func (f *portFinder) iptables(ctx context.Context, t iptables.Table) error {
	st, err := t.Read(ctx, hostPortChain, nodePortChain)
	if err != nil {
		return err
	}
	for _, r := range st.Rules(nodePortChain) {
		f.addPorts(protocolName(r.Proto), r.Ports, Port{NodePort: true, Chain: "chain " + nodePortChain + " of " + t.String()})
	}
	read := map[string]bool{}
	for _, e := range st.Rules(hostPortChain) {
		network, id, ok := parseComment(e.Comment)
		if !ok || read[e.Jump] || e.Jump != iptablesChain(hostPortPrefix, network, id) || !f.anyWanted(protocolName(e.Proto), e.Ports) {
			continue
		}
		read[e.Jump] = true
		of := st
		if st.Chains[e.Jump] == nil {
			if of, err = t.Read(ctx, e.Jump); err != nil {
				return err
			}
		}
		for _, r := range of.Rules(e.Jump) {
			if r.Jump == "" { // the other rules mark the packet
				f.addPorts(protocolName(r.Proto), r.Ports, Port{
					Node: singleAddr(r.Destination), Network: network, ContainerID: id, Chain: "chain " + e.Jump + " of " + t.String(),
				})
			}
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
