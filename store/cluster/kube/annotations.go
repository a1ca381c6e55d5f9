package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// DefaultPrefix is flannel's prefix of the names of annotations.
const DefaultPrefix = "flannel.alpha.coreos.com"

// keys are the names of the annotations.
type keys struct {
	managed, backendType, data, v6Data, publicIP, publicIPv6 string
	// author has the record's Author, which flannel ignores.
	author string
	// Operators write these.
	publishIP, publishIPv6, nodeIP, nodeIPv6 string
}

// newKeys returns the names. The prefix is a domain, or a domain, a slash and the
// beginning of a name, to which a hyphen is added.
func newKeys(prefix string) (keys, error) {
	domain, name, slash := strings.Cut(prefix, "/")
	ok := strings.Contains(strings.Trim(domain, "."), ".") && len(prefix) <= 200
	for _, c := range domain + name {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	}
	if !ok || strings.Contains(name, ".") {
		return keys{}, fmt.Errorf("annotation prefix %q: %w: give a domain, as %s, or a domain and the beginning of a name, as example.com/net", prefix, cluster.ErrInvalid, DefaultPrefix)
	}
	switch {
	case !slash:
		prefix += "/"
	case name != "" && !strings.HasSuffix(name, "-"):
		prefix += "-"
	}
	return keys{
		managed: prefix + "kube-subnet-manager", backendType: prefix + "backend-type",
		data: prefix + "backend-data", v6Data: prefix + "backend-v6-data",
		publicIP: prefix + "public-ip", publicIPv6: prefix + "public-ipv6",
		author:    prefix + "cnibox-author",
		publishIP: prefix + "public-ip-overwrite", publishIPv6: prefix + "public-ipv6-overwrite",
		nodeIP: prefix + "node-public-ip", nodeIPv6: prefix + "node-public-ipv6",
	}, nil
}

// own returns the annotations that the agent writes.
func (k *keys) own() []string {
	return []string{k.managed, k.backendType, k.data, k.v6Data, k.publicIP, k.publicIPv6, k.author}
}

// faults collects the faults of a Node object.
type faults []error

func (f *faults) addr(annotations map[string]string, key string) (a netip.Addr) {
	s := annotations[key]
	if s == "" {
		return a
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		*f = append(*f, fmt.Errorf("%w: annotation %s is %.64q: not an address", cluster.ErrInvalid, key, s))
	}
	return a
}

// overrides reads the annotations that operators write. A value that is not an address is an error.
func (k *keys) overrides(o *rest.Node) (cluster.Overrides, error) {
	var f faults
	a := o.Metadata.Annotations
	w := cluster.Overrides{
		NodeIP: f.addr(a, k.nodeIP), NodeIPv6: f.addr(a, k.nodeIPv6),
		PublishIP: f.addr(a, k.publishIP), PublishIPv6: f.addr(a, k.publishIPv6),
	}
	for key, addr := range map[string]netip.Addr{k.nodeIP: w.NodeIP, k.publishIP: w.PublishIP} {
		if addr.IsValid() && !addr.Is4() {
			f = append(f, fmt.Errorf("%w: annotation %s is %s: give an IPv4 address", cluster.ErrInvalid, key, addr))
		}
	}
	for key, addr := range map[string]netip.Addr{k.nodeIPv6: w.NodeIPv6, k.publishIPv6: w.PublishIPv6} {
		if addr.IsValid() && (!addr.Is6() || addr.Is4In6()) {
			f = append(f, fmt.Errorf("%w: annotation %s is %s: give an IPv6 address", cluster.ErrInvalid, key, addr))
		}
	}
	return w, errors.Join(f...)
}

// takesPart reports whether flannel or cnibox manages a node's pod network.
func (k *keys) takesPart(o *rest.Node) bool { return o.Metadata.Annotations[k.managed] == "true" }

// node reads a Node object. It omits pod networks of families that the cluster's configuration does
// not have, because another program may use them.
func (r *Registry) node(o *rest.Node) (cluster.Node, error) {
	k, a := &r.keys, o.Metadata.Annotations
	var f faults
	n := cluster.Node{
		Name:        o.Metadata.Name,
		PublicIP:    f.addr(a, k.publicIP),
		PublicIPv6:  f.addr(a, k.publicIPv6),
		BackendType: backendName(a[k.backendType]),
		Author:      r.author(o),
	}
	if data := a[k.data]; data != "" {
		n.BackendData = json.RawMessage(data)
	}
	if data := a[k.v6Data]; data != "" {
		n.BackendV6Data = json.RawMessage(data)
	}
	var err error
	n.PodCIDRs, err = r.podCIDRs(o)
	if err != nil {
		f = append(f, err)
	}
	if err := errors.Join(f...); err != nil {
		return n, err
	}
	if err := cluster.CheckName(n.Name); err != nil {
		return n, err
	}
	return n, n.CheckIn(r.config)
}

// author returns the author of a Node object's record. An annotation that no agent wrote counts as none.
func (r *Registry) author(o *rest.Node) (a cluster.Author) {
	text := o.Metadata.Annotations[r.keys.author]
	if text == "" || json.Unmarshal([]byte(text), &a) != nil {
		return cluster.Author{}
	}
	return a
}

// backendName returns the constant for a usual name, so that thousands of nodes do not need a copy
// each.
func backendName(s string) string {
	for _, known := range []string{"vxlan", "host-gw"} {
		if s == known {
			return known
		}
	}
	return s
}

// podCIDRs returns the networks that were assigned to a node, of the enabled
// families, IPv4 first.
func (r *Registry) podCIDRs(o *rest.Node) ([]netip.Prefix, error) {
	given := o.Spec.PodCIDRs
	if len(given) == 0 && o.Spec.PodCIDR != "" {
		given = []string{o.Spec.PodCIDR}
	}
	if len(given) > 2 {
		return nil, fmt.Errorf("%w: spec.podCIDRs has %d networks: want one of each family", cluster.ErrInvalid, len(given))
	}
	var v4, v6 []netip.Prefix
	for i, s := range given {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: spec.podCIDRs[%d] is %.64q: not a network", cluster.ErrInvalid, i, s)
		case p.Addr().Is4() && r.config.EnableIPv4:
			v4 = append(v4, p)
		case p.Addr().Is6() && r.config.EnableIPv6:
			v6 = append(v6, p)
		}
	}
	if len(v4) > 1 || len(v6) > 1 {
		return nil, fmt.Errorf("%w: spec.podCIDRs %v: want one of each family", cluster.ErrInvalid, given)
	}
	return append(v4, v6...), nil
}

// annotations returns the annotations of a node's record. A nil value is of an annotation that must
// not exist.
func (k *keys) annotations(n *cluster.Node) map[string]*string {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	addr := func(a netip.Addr) *string {
		if !a.IsValid() {
			return nil
		}
		return text(a.String())
	}
	data := func(a netip.Addr, raw json.RawMessage) *string {
		switch {
		case len(raw) > 0:
			return text(string(raw))
		case a.IsValid():
			return text("null") // flannel writes this for unused backend data
		}
		return nil
	}
	var author *string
	if n.Author != (cluster.Author{}) {
		raw, _ := json.Marshal(n.Author) // it has no value that JSON lacks
		author = text(string(raw))
	}
	return map[string]*string{
		k.author:  author,
		k.managed: text("true"), k.backendType: text(n.BackendType),
		k.publicIP: addr(n.PublicIP), k.publicIPv6: addr(n.PublicIPv6),
		k.data: data(n.PublicIP, n.BackendData), k.v6Data: data(n.PublicIPv6, n.BackendV6Data),
	}
}

// missing returns the annotations of want that the object does not have or has with another value.
func missing(o *rest.Node, want map[string]*string) map[string]*string {
	out := map[string]*string{}
	for key, value := range want {
		have, ok := o.Metadata.Annotations[key]
		if value == nil && ok || value != nil && (!ok || have != *value) {
			out[key] = value
		}
	}
	return out
}
