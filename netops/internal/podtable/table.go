package podtable

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Deny is the chain that drops everything. It is the chain of a pod whose policies are unknown.
const Deny = "deny"

// Denied is the verdict of a rule that denies a connection. All rules that do go to one chain, which can log.
const Denied = "goto " + Deny

// PodSets is the prefix of the sets that have the pods of this node. ADD and DEL change these; the agent alone changes
// the other sets.
const PodSets = "pod_"

// self names the sets of the addresses of pods as pairs: those of connections from a pod to itself. strays ends the names of the sets of pods
// whose packets without a connection are dropped: no rule of a policy matches these.
const (
	self   = "self"
	strays = "_strays"
)

// The base chains. A connection between two pods of this node passes both first ones. What one accepts, the other can still drop. Then
// come those for the connections of pods to their own node, and those for packets to the servers of IPVS.
const (
	egressChain         = "egress"
	ingressChain        = "ingress"
	toNodeChain         = "to_node"
	ofNodeChain         = "of_node"
	serviceEgressChain  = "service_egress"
	serviceIngressChain = "service_ingress"
	// Before the chains of most programs, which drop or accept by other rules.
	egressPriority  = nft.PriorityFilter - 10
	ingressPriority = nft.PriorityFilter - 9
)

// Table returns the table.
func Table() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox_policy"} }

// Schema returns the sets of pods, for an nft.Client that reads and changes them.
func Schema() nft.Schema {
	f := nft.Feature{Table: Table(), Chains: func() []nft.Chain { return nil }}
	for _, v6 := range []bool{false, true} {
		for _, direction := range []string{egressChain, ingressChain} {
			key := []nft.Field{addressField(v6)}
			f.Sets = append(f.Sets,
				&nft.Set{Table: Table(), Name: podSet(direction, v6), Key: key, Data: []nft.Field{nft.Verdict}},
				&nft.Set{Table: Table(), Name: podSet(direction+strays, v6), Key: key})
		}
	}
	f.Sets = append(f.Sets, linkSets()...)
	f.Sets = append(f.Sets, &nft.Set{Table: Table(), Name: dhcpSet, Key: []nft.Field{nft.IfName, nft.IfName, nft.IP4Addr}})
	return nft.Schema{f, bridgeFeature()}
}

func addressField(v6 bool) nft.Field { return either(v6, nft.IP4Addr, nft.IP6Addr) }

func podSet(what string, v6 bool) string { return PodSets + what + Suffix(v6) }

// Suffix returns the end of the name of a set of one address family.
func Suffix(v6 bool) string { return either(v6, "4", "6") }

// IsPodSet reports whether a set has the pods of this node.
func IsPodSet(name string) bool { return strings.HasPrefix(name, PodSets) }

// Pod is what the elements of a pod depend on.
type Pod struct {
	// Egress and Ingress are the pod's chains. One is "" in a direction in which no policy selects the pod.
	Egress, Ingress string
	// Label is that of the pod's attachment.
	Label string
	// Port is the pod's interface on the host if it is a port of Bridge. Otherwise both are "".
	Port, Bridge string
}

// Elements returns the elements of an address of a pod that policies select. Those of its port are the same for each address.
func Elements(a netip.Addr, p *Pod) (all []*nft.Element) {
	text := a.String()
	for _, d := range []struct{ name, chain string }{{egressChain, p.Egress}, {ingressChain, p.Ingress}} {
		if d.chain == "" {
			continue
		}
		if d.chain != Deny {
			d.chain += Suffix(a.Is6())
		}
		all = append(all,
			&nft.Element{Set: podSet(d.name, a.Is6()), Key: []string{text}, Value: []string{"goto " + d.chain}, Label: p.Label},
			&nft.Element{Set: podSet(d.name+strays, a.Is6()), Key: []string{text}, Label: p.Label})
	}
	if p.Ingress != "" {
		all = append(all, &nft.Element{Set: podSet(selectedSet, a.Is6()), Key: []string{text}, Label: p.Label})
	}
	if len(all) > 0 && p.Port != "" {
		all = append(all, portElements(a, p)...)
	}
	return all
}

// Message returns the request that makes the chain without its rules.
func (c *Chain) Message() nlconn.Message {
	return Table().ChainMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Name)
}

// RuleMessages returns the requests that append the chain's rules.
func (c *Chain) RuleMessages() (msgs []nlconn.Message, err error) {
	for i := range c.Rules {
		r, failed := c.Rules[i].encode()
		msgs, err = append(msgs, r.Message(Table(), c.Name)), errors.Join(err, failed)
	}
	return msgs, err
}
