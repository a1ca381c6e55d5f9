package wish

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
)

// maxNetworks limits the number of networks of one pod.
const maxNetworks = 128

// Parse reads NetworksKey and DefaultKey of a pod's annotations. A network without a namespace gets
// the pod's. The namespace of the default network stays empty, because the role's configuration
// defines its default. All faults are returned at once as a ConfError whose path has the
// annotation, the element and the key.
func Parse(annotations map[string]string, namespace string) (*Wishes, error) {
	var f roles.Faults
	w := &Wishes{Networks: parseList(&f, NetworksKey, annotations[NetworksKey], namespace)}
	checkConflicts(&f, w.Networks)
	list := parseList(&f, DefaultKey, annotations[DefaultKey], "")
	if len(list) > 1 {
		f.Addf(annotation(DefaultKey), "names %d networks: a pod has one default network, request others with %s", len(list), NetworksKey)
	}
	if len(list) > 0 {
		w.Default = &list[0]
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return w, nil
}

func annotation(key string) string { return "annotation " + key }

// parseList reads one annotation. The content decides which of the two forms it has (the standard,
// section 4.1).
func parseList(f *roles.Faults, key, value, namespace string) []Network {
	path := annotation(key)
	if strings.TrimSpace(value) == "" {
		return nil
	}
	if !utf8.ValidString(value) {
		f.Addf(path, "is not UTF-8")
		return nil
	}
	var list []Network
	if strings.ContainsAny(value, `[{"`) {
		list = parseJSON(f, path, value)
	} else {
		list = parseShort(f, path, value)
	}
	for i := range list {
		if list[i].Namespace == "" {
			list[i].Namespace = namespace
		}
	}
	return list
}

// parseShort reads the form "[namespace/]name[@interface], …".
func parseShort(f *roles.Faults, path, value string) []Network {
	n := strings.Count(value, ",") + 1
	if tooMany(f, path, n) {
		return nil
	}
	list := make([]Network, n)
	for i, item := range strings.Split(value, ",") {
		at := fmt.Sprintf("%s[%d]", path, i)
		item = strings.TrimSpace(item)
		name, ifName, named := strings.Cut(item, "@")
		namespace, rest, qualified := strings.Cut(name, "/")
		if !qualified {
			namespace, rest = "", name
		}
		namespace, rest, ifName = strings.TrimSpace(namespace), strings.TrimSpace(rest), strings.TrimSpace(ifName)
		switch {
		case item == "":
			f.Addf(at, "is empty: name a network, or remove the comma")
			continue
		case qualified && !IsLabel(namespace), !IsLabel(rest):
			f.Addf(at, "%q is not of the form [namespace/]name[@interface], each of namespace and name 1 to %d of a-z, 0-9 and '-', with a letter or digit at both ends", item, maxLabel)
		}
		if named {
			f.Check(at, roles.LinkName(ifName))
		}
		list[i] = Network{Namespace: namespace, Name: rest, IfName: ifName}
	}
	return list
}

// parseJSON reads the form of a list of objects.
func parseJSON(f *roles.Faults, path, value string) []Network {
	var raw []json.RawMessage
	if err := coldjson.Unmarshal([]byte(value), &raw); err != nil {
		hint := "it must be a list of objects, such as [{\"name\": \"net-a\"}], or of names, such as net-a,net-b"
		f.Addf(path, "cannot be read: %v; %s", roles.Mismatch(err), hint)
		return nil
	}
	if tooMany(f, path, len(raw)) {
		return nil
	}
	list := make([]Network, len(raw))
	for i := range raw {
		e := element{faults: f, path: fmt.Sprintf("%s[%d]", path, i), to: &list[i]}
		e.read(raw[i])
	}
	return list
}

func tooMany(f *roles.Faults, path string, n int) bool {
	if n > maxNetworks {
		f.Addf(path, "requests %d networks: a pod can have %d", n, maxNetworks)
	}
	return n > maxNetworks
}

// checkConflicts checks for conflicts between elements.
func checkConflicts(f *roles.Faults, list []Network) {
	ifNames := map[string]int{}
	gateways := map[bool]int{}
	for i, n := range list {
		if first, taken := ifNames[n.IfName]; taken && n.IfName != "" {
			f.Addf(fmt.Sprintf("%s[%d].interface", annotation(NetworksKey), i), "%q is already requested by network %q (element %d): set another one for network %q, or none", n.IfName, list[first].Name, first, n.Name)
		} else {
			ifNames[n.IfName] = i
		}
		for _, gw := range n.DefaultRoute {
			if first, taken := gateways[gw.Is4()]; taken {
				f.Addf(fmt.Sprintf("%s[%d].default-route", annotation(NetworksKey), i), "%s is a second gateway of its family, after that of element %d: a pod has one default route for IPv4 and one for IPv6", gw, first)
			} else {
				gateways[gw.Is4()] = i
			}
		}
	}
}

// ParsePlugins reads the value of PluginsKey, "name[@interface], …". It returns nil for an empty
// value.
func ParsePlugins(value string) ([]Plugin, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	var f roles.Faults
	if n := strings.Count(value, ",") + 1; tooMany(&f, annotation(PluginsKey), n) {
		return nil, f.Err()
	}
	var list []Plugin
	for i, item := range strings.Split(value, ",") {
		at := fmt.Sprintf("%s[%d]", annotation(PluginsKey), i)
		name, ifName, named := strings.Cut(item, "@")
		p := Plugin{Name: strings.TrimSpace(name), IfName: strings.TrimSpace(ifName)}
		if !roles.IsName(p.Name) || len(p.Name) > maxText {
			f.Addf(at, "%q is not of the form name[@interface], with the name of a network or of its plugin's type", strings.TrimSpace(item))
		}
		if named {
			f.Check(at, roles.LinkName(p.IfName))
			if slices.ContainsFunc(list, func(q Plugin) bool { return q.IfName == p.IfName && p.IfName != "" }) {
				f.Addf(at, "interface %q is requested twice: use another one", p.IfName)
			}
		}
		list = append(list, p)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return list, nil
}

// Args returns the object for args.cni: that of the request, with the IPAMClaim. No capability exists for the latter,
// and plugins that do not know it ignore it.
func (n *Network) Args() json.RawMessage {
	if n.IPAMClaim == "" {
		return n.CNIArgs
	}
	args := map[string]json.RawMessage{}
	if n.CNIArgs != nil && coldjson.Unmarshal(n.CNIArgs, &args) != nil {
		return n.CNIArgs // readArgs has decoded it
	}
	claim, err := coldjson.Marshal(n.IPAMClaim)
	if err != nil {
		return n.CNIArgs
	}
	args["ipam-claim-reference"] = claim
	merged, err := coldjson.Marshal(args)
	if err != nil {
		return n.CNIArgs
	}
	return merged
}

// Requests returns the values for runtimeConfig, by the capability that a plugin of the network
// must declare (the standard, section 4.1.2.1, and the CNI conventions). The caller must reject a
// request that no plugin declares.
func (n *Network) Requests() map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	add := func(capability string, value any) {
		raw, err := coldjson.Marshal(value)
		if err == nil {
			out[capability] = raw
		}
	}
	if len(n.IPs) > 0 {
		add("ips", n.IPs)
	}
	if n.MAC != "" {
		add("mac", n.MAC)
	}
	if n.InfinibandGUID != "" {
		add("infinibandGUID", n.InfinibandGUID)
	}
	if n.DeviceID != "" {
		add("deviceID", n.DeviceID)
	}
	if n.PortMappings != nil {
		out["portMappings"] = n.PortMappings
	}
	if n.Bandwidth != nil {
		out["bandwidth"] = n.Bandwidth
	}
	return out
}

// String returns the short form.
func (n *Network) String() string {
	s := n.Name
	if n.Namespace != "" {
		s = n.Namespace + "/" + s
	}
	if n.IfName != "" {
		s += "@" + n.IfName
	}
	return s
}
