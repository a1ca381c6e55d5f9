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

// networkView makes azure-vnet.json; nil if the error is about more than single records.
func networkView(tx *store.Tx, h *roles.Host, revision store.Revision, now time.Time) ([]byte, error) {
	all, err := tx.Derive(viewName, derive)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}
	externals := assemble(all)
	shown := map[string]externalInterface{}
	var lists [][]byte
	for _, name := range slices.Sorted(maps.Keys(externals)) {
		x := externals[name]
		networks := map[string]networkInfo{}
		for _, id := range slices.Sorted(maps.Keys(x.networks)) {
			n := x.networks[id]
			networks[id] = networkInfo{ID: id, Mode: n.Mode, VLAN: n.VLAN, Subnets: convert(n.Subnets, subnet.info), DNS: dnsInfo{n.Suffix, n.Servers}}
			lists = append(lists, n.text())
		}
		shown[name] = externalInterface{
			Name: name, Networks: networks, Subnets: convert(x.Subnets, func(s subnet) string { return s.Prefix.String() }),
			BridgeName: x.Bridge, MacAddress: macOf(x.MAC), IPAddresses: convert(x.Own, netOf),
			IPv4Gateway: x.gateway(netip.IPv4Unspecified()), IPv6Gateway: x.gateway(netip.IPv6Unspecified()),
		}
	}
	doc := document{Network: &networkPart{header: headerOf(h, now), ExternalInterfaces: shown}}
	b, encodeErr := doc.encode(h, revision, "Endpoints", lists)
	if encodeErr != nil {
		return nil, encodeErr
	}
	return b, err
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

// gateway is the first one of a family, the unspecified address without any.
func (g *group) gateway(unspecified netip.Addr) netip.Addr {
	for _, s := range g.Subnets {
		if s.Gateway.IsValid() && s.Gateway.Is4() == unspecified.Is4() {
			return s.Gateway
		}
	}
	return unspecified
}

// text has the network's endpoints.
func (n *network) text() []byte {
	size := 0
	for i := range n.endpoints {
		size += len(n.endpoints[i].body) + endpointSize
	}
	b := make([]byte, 0, size)
	for i := range n.endpoints {
		e := &n.endpoints[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendQuoted(append(b, memberLine...), e.id), ": {"+fieldLine+"\"Id\": "...)
		b = append(append(appendQuoted(b, e.id), e.body...), memberLine+"}"...)
	}
	return b
}

// endpointSize is the approximate size of the text around an endpoint.
const endpointSize = 128

// info returns a SubnetInfo of azure's.
func (s subnet) info() subnetInfo {
	family := familyIPv6
	if s.Prefix.Addr().Is4() {
		family = familyIPv4
	}
	return subnetInfo{family, netOf(s.Prefix), s.Gateway}
}
