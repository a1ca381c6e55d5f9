package refplugins

import (
	"context"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
)

// What kube-proxy translates for Services of type NodePort: a map of its nftables
// backend, or a chain of its iptables backend in table nat.
const (
	kubeProxyTable = "kube-proxy"
	kubeProxyMap   = "service-nodeports"
	nodePortChain  = "KUBE-NODEPORTS"
)

// nodePortMap reads the map of kube-proxy's nftables backend.
func (f *portFinder) nodePortMap(ctx context.Context, c *nft.Client) error {
	s := &nft.Set{
		Table: nft.Table{Family: f.family, Name: kubeProxyTable}, Name: kubeProxyMap,
		Key: []nft.Field{nft.InetProto, nft.InetService}, Data: []nft.Field{nft.Verdict},
	}
	all, err := c.ListSet(ctx, s)
	for _, e := range all {
		if port, err := strconv.ParseUint(e.Key[1], 10, 16); err == nil {
			f.addPorts(e.Key[0], []portRange{{uint16(port), uint16(port)}}, Port{NodePort: true, Chain: "map " + kubeProxyMap + " of nftables table " + s.Table.String()})
		}
	}
	return err
}

// nodePortRules reads the rules of kube-proxy's iptables backend.
func (f *portFinder) nodePortRules(ctx context.Context, c *nft.Client) error {
	rules, err := readRules(ctx, c, iptablesTable(f.family, "nat"), nodePortChain)
	for i := range rules {
		f.addPorts(protocolName(rules[i].proto), rules[i].ports, Port{NodePort: true, Chain: "chain " + nodePortChain + " of iptables table nat"})
	}
	return err
}

// legacyNodePorts reads the rules of kube-proxy's iptables backend with iptables-legacy.
func (f *portFinder) legacyNodePorts(st *iptables.State) {
	c := st.Chains[nodePortChain]
	if c == nil {
		return
	}
	for _, r := range c.Rules {
		if port, err := strconv.ParseUint(legacyOption(r, "--dport"), 10, 16); err == nil {
			f.addPorts(legacyOption(r, "-p"), []portRange{{uint16(port), uint16(port)}}, Port{NodePort: true, Chain: "chain " + nodePortChain + " of iptables-legacy's table nat"})
		}
	}
}

// HasKubeProxy reports whether kube-proxy's rules are there, of any backend.
func (n *Leftovers) HasKubeProxy(ctx context.Context) (bool, error) {
	for _, family := range bothFamilies() {
		tables, err := n.NFT.Tables(ctx, family)
		if err != nil || slices.Contains(tables, kubeProxyTable) {
			return err == nil, err
		}
		if has, err := n.NFT.HasChain(ctx, iptablesTable(family, "nat"), serviceChain); err != nil || has {
			return has, err
		}
		if iptables.IsLegacyLoaded(family, "nat") && iptables.LegacyMentions(family, "nat", serviceChain) {
			return true, nil
		}
	}
	return false, nil
}
