package azureview

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// endpointDepth is the depth of an endpoint's fields in the file, endpointSize
// the approximate size of the text around them.
const (
	endpointDepth = 8
	endpointSize  = 128
)

// Address families as azure's files have them: AF_INET and AF_INET6.
const (
	familyIPv4 = 2
	familyIPv6 = 10
)

// group is what the endpoints on one interface into the cloud's network share.
type group struct {
	Mode    string         `json:"mode"`
	Master  string         `json:"master"`
	MAC     string         `json:"mac"`
	Bridge  string         `json:"bridge"`
	Own     []netip.Prefix `json:"own"`
	VLAN    int            `json:"vlan"`
	Subnets []subnet       `json:"subnets"`
	Suffix  string         `json:"suffix"`
	Servers []string       `json:"servers"`
}

type subnet struct {
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// external is an interface into the cloud's network, with the networks on it.
type external struct {
	group
	networks map[string]*network
}

type network struct {
	group
	endpoints []endpoint
}

// endpoint is one endpoint; body points into the store.
type endpoint struct {
	key  store.Key
	id   string
	body []byte
}

// networkView writes azure-vnet.json; nil if the error is about more than single records.
func networkView(tx *store.Tx, h *roles.Host, revision store.Revision, now time.Time) (*text, error) {
	all, err := tx.Derive(viewName, derive)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}
	size := 8 << 10
	for _, d := range all {
		size += len(d.Text) + endpointSize
	}
	t := begin(h, "Network", now, size)
	t.externals(assemble(all))
	return t.end(h, revision), err
}

// assemble puts endpoints below their networks, and these below their interfaces.
func assemble(all []store.Derived) map[string]*external {
	externals := map[string]*external{}
	heads := map[string]*group{}
	var lost []store.Derived // their rebuilt records name no interface
	for _, d := range all {
		if len(d.Text) == 0 {
			continue
		}
		head, body := split(d.Text)
		g := heads[string(head)]
		if g == nil {
			g = new(group)
			if coldjson.Unmarshal(head, g) != nil {
				continue
			}
			heads[string(head)] = g
		}
		if g.Master == "" {
			lost = append(lost, d)
			continue
		}
		into(externals, g, d.Key, body)
	}
	for _, d := range lost {
		_, body := split(d.Text)
		into(externals, adopt(externals, d.Key.Network), d.Key, body)
	}
	for _, x := range externals {
		for _, n := range x.networks {
			n.name()
		}
	}
	return externals
}

// adopt is the group of another endpoint of a network, or one without a name.
func adopt(externals map[string]*external, network string) *group {
	for _, name := range slices.Sorted(maps.Keys(externals)) {
		if n := externals[name].networks[network]; n != nil {
			return &n.group
		}
	}
	return new(group)
}

// into adds an endpoint.
func into(externals map[string]*external, g *group, key store.Key, body []byte) {
	x := externals[g.Master]
	if x == nil {
		x = &external{group: *g, networks: map[string]*network{}}
		x.Subnets = nil
		externals[g.Master] = x
	}
	n := x.networks[key.Network]
	if n == nil {
		n = &network{group: *g}
		n.Subnets = nil
		x.networks[key.Network] = n
	}
	n.addSubnets(g.Subnets)
	x.addSubnets(g.Subnets)
	n.endpoints = append(n.endpoints, endpoint{key: key, body: body})
}

func (g *group) addSubnets(more []subnet) {
	for _, s := range more {
		if !slices.ContainsFunc(g.Subnets, func(o subnet) bool { return o.Prefix == s.Prefix }) {
			g.Subnets = append(g.Subnets, s)
		}
	}
}

// name gives endpoints their names, as azure's: the container ID's first 8
// characters and the interface. Where two would have the same name, which azure
// takes for one endpoint, it is the whole ID.
func (n *network) name() {
	const short = 8
	used := map[string]int{}
	for i := range n.endpoints {
		e := &n.endpoints[i]
		e.id = e.key.ContainerID[:min(short, len(e.key.ContainerID))] + "-" + e.key.IfName
		used[e.id]++
	}
	for i := range n.endpoints {
		if e := &n.endpoints[i]; used[e.id] > 1 {
			e.id = e.key.ContainerID + "-" + e.key.IfName
		}
	}
	sorting.Func(n.endpoints, func(a, b endpoint) int { return cmp.Compare(a.id, b.id) })
}

// externals writes ExternalInterfaces.
func (t *text) externals(all map[string]*external) {
	t.name("ExternalInterfaces")
	t.open('{')
	for _, name := range slices.Sorted(maps.Keys(all)) {
		x := all[name]
		t.name(name)
		t.open('{')
		t.name("Name")
		t.string(name)
		t.name("Networks")
		t.open('{')
		for _, id := range slices.Sorted(maps.Keys(x.networks)) {
			t.name(id)
			t.network(id, x.networks[id])
		}
		t.close('}')
		t.name("Subnets")
		list(t, x.Subnets, func(s subnet) { t.string(s.Prefix.String()) })
		t.name("BridgeName")
		t.string(x.Bridge)
		t.name("MacAddress")
		t.mac(x.MAC)
		t.name("IPAddresses")
		list(t, x.Own, t.prefix)
		t.name("Routes")
		t.null()
		t.name("IPv4Gateway")
		t.addr(x.gateway(netip.IPv4Unspecified()))
		t.name("IPv6Gateway")
		t.addr(x.gateway(netip.IPv6Unspecified()))
		t.close('}')
	}
	t.close('}')
}

// gateway is the first one of a family, the unspecified address without any.
func (g *group) gateway(unspecified netip.Addr) netip.Addr {
	for _, s := range g.Subnets {
		if s.Gateway.IsValid() && s.Gateway.Is4() == unspecified.Is4() {
			return s.Gateway
		}
	}
	return unspecified
}

// network writes one network.
func (t *text) network(id string, n *network) {
	t.open('{')
	t.name("Id")
	t.string(id)
	t.name("Mode")
	t.string(n.Mode)
	t.name("VlanId")
	t.int(n.VLAN)
	t.name("Subnets")
	list(t, n.Subnets, t.subnet)
	t.name("Endpoints")
	t.open('{')
	for i := range n.endpoints {
		e := &n.endpoints[i]
		t.name(e.id)
		t.open('{')
		t.name("Id")
		t.string(e.id)
		t.b = append(t.b, e.body...)
		t.close('}')
	}
	t.close('}')
	t.name("DNS")
	t.dns(n.Suffix, n.Servers)
	t.name("EnableSnatOnHost")
	t.bool(false)
	t.close('}')
}

// subnet writes a SubnetInfo of azure's.
func (t *text) subnet(s subnet) {
	family := familyIPv6
	if s.Prefix.Addr().Is4() {
		family = familyIPv4
	}
	t.open('{')
	t.name("Family")
	t.int(family)
	t.name("Prefix")
	t.prefix(s.Prefix)
	t.name("Gateway")
	t.addr(s.Gateway)
	t.close('}')
}
