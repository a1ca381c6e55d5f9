package wish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
)

// element is one object of the JSON form while it is read. Keys are read one by
// one, so that each fault is told.
type element struct {
	faults *roles.Faults
	path   string
	to     *Network
}

// elementKeys are the keys of an element (the standard, section 4.1.2.1; deviceID
// is Multus's), each with what reads it.
func elementKeys() []elementKey {
	return []elementKey{
		{"name", (*element).readName},
		{"namespace", (*element).readNamespace},
		{"interface", (*element).readInterface},
		{"ips", (*element).readIPs},
		{"mac", (*element).readMAC},
		{"infiniband-guid", (*element).readGUID},
		{"cni-args", (*element).readArgs},
		{"portMappings", (*element).readPortMappings},
		{"bandwidth", (*element).readBandwidth},
		{"default-route", (*element).readDefaultRoute},
		{"ipam-claim-reference", (*element).readClaim},
		{"deviceID", (*element).readDevice},
		{ExtrasKey, (*element).readExtras},
	}
}

type elementKey struct {
	name string
	read func(e *element, path string, raw json.RawMessage)
}

func (e *element) read(raw json.RawMessage) {
	given := e.object(e.path, raw)
	if given == nil {
		return
	}
	names := sortedKeys(given)
	keys := elementKeys()
	for _, name := range names {
		// encoding/json, and so Multus, takes keys in any case
		i := slices.IndexFunc(keys, func(k elementKey) bool { return strings.EqualFold(k.name, name) })
		switch {
		case i < 0 && isForeignKey(name):
		case i < 0:
			e.faults.Addf(e.path+"."+name, "is not known: see the list of keys in the documentation; a key of your own is to be in reverse domain name notation, such as org.example.%s", name)
		case string(given[name]) != "null":
			keys[i].read(e, e.path+"."+keys[i].name, given[name])
		}
	}
	if e.to.Name == "" && !slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, "name") }) {
		e.faults.Addf(e.path+".name", "is missing: name a NetworkAttachmentDefinition")
	}
	if len(e.to.IPs) > 0 && e.to.IPAMClaim != "" {
		e.faults.Addf(e.path+".ips", "cannot be combined with ipam-claim-reference: each says which addresses to take, choose one")
	}
	if len(e.to.IPs) > 0 && e.to.Extras.IP == noIP {
		e.faults.Addf(e.path+".ips", "cannot be combined with %s.ip \"none\": choose one", ExtrasKey)
	}
}

func sortedKeys(m map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(m)) }

// object decodes a JSON object, nil after a fault.
func (e *element) object(path string, raw json.RawMessage) map[string]json.RawMessage {
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		e.faults.Addf(path, "is to be an object, such as {\"name\": \"net-a\"}")
		return nil
	}
	m := map[string]json.RawMessage{}
	e.value(path, raw, &m)
	return m
}

// value decodes a value and tells whether that worked.
func (e *element) value(path string, raw json.RawMessage, into any) bool {
	err := coldjson.Unmarshal(raw, into)
	if err != nil {
		e.faults.Addf(path, "%v", roles.Mismatch(err))
	}
	return err == nil
}

func (e *element) readName(path string, raw json.RawMessage) {
	if e.value(path, raw, &e.to.Name) && !isSubdomain(e.to.Name) {
		e.faults.Addf(path, "%q is no name of an object: use a-z, 0-9, '-' and '.', with a letter or digit at both ends", e.to.Name)
	}
}

func (e *element) readNamespace(path string, raw json.RawMessage) {
	if e.value(path, raw, &e.to.Namespace) && e.to.Namespace != "" && !isLabel(e.to.Namespace) {
		e.faults.Addf(path, "%q is no namespace: use 1 to %d of a-z, 0-9 and '-', with a letter or digit at both ends", e.to.Namespace, maxLabel)
	}
}

func (e *element) readInterface(path string, raw json.RawMessage) {
	if e.value(path, raw, &e.to.IfName) && e.to.IfName != "" {
		checkIfName(e.faults, path, e.to.IfName)
	}
}

// readIPs takes an empty list for no wish, as Multus does.
func (e *element) readIPs(path string, raw json.RawMessage) {
	var texts []string
	if !e.value(path, raw, &texts) {
		return
	}
	for i, s := range texts {
		ip, ok := parseIP(s)
		if !ok {
			e.faults.Addf(fmt.Sprintf("%s[%d]", path, i), "%q is no address: use the form 10.1.0.5, 10.1.0.5/24 or fd00::5/64", s)
		}
		e.to.IPs = append(e.to.IPs, ip)
	}
}

// parseIP reads an address with or without a prefix length.
func parseIP(s string) (string, bool) {
	if !strings.Contains(s, "/") {
		a, err := roles.ParseAddr(s)
		return a.String(), err == nil
	}
	p, err := netip.ParsePrefix(s)
	return p.String(), err == nil && !p.Addr().Is4In6()
}

func (e *element) readMAC(path string, raw json.RawMessage) {
	var s string
	if !e.value(path, raw, &s) {
		return
	}
	roles.MACKeys{{Path: path, Value: s}}.Check(e.faults)
	e.to.MAC = roles.UnicastMAC(s)
}

const guidBytes = 8

func (e *element) readGUID(path string, raw json.RawMessage) {
	var s string
	if !e.value(path, raw, &s) || s == "" {
		return
	}
	guid, err := net.ParseMAC(s)
	if err != nil || len(guid) != guidBytes {
		e.faults.Addf(path, "%q is no InfiniBand GUID: use %d bytes in the form 24:8a:07:03:00:8d:ae:2f", s, guidBytes)
		return
	}
	e.to.InfinibandGUID = guid.String()
}

func (e *element) readArgs(path string, raw json.RawMessage) {
	if e.object(path, raw) != nil {
		e.to.CNIArgs = raw
	}
}

// portMapping is what the standard asks of a mapping; plugins may know more keys.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

func (e *element) readPortMappings(path string, raw json.RawMessage) {
	var list []portMapping
	if !e.value(path, raw, &list) || len(list) == 0 {
		return
	}
	for i, m := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		for _, p := range []struct {
			key  string
			port int
		}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
			if p.port < 1 || p.port > math.MaxUint16 {
				e.faults.Addf(at+"."+p.key, "%d is no port: use 1 to %d", p.port, math.MaxUint16)
			}
		}
		if !slices.Contains([]string{"", "tcp", "udp", "sctp"}, strings.ToLower(m.Protocol)) {
			e.faults.Addf(at+".protocol", "%q is not known: use \"tcp\", \"udp\" or \"sctp\"", m.Protocol)
		}
		if _, err := roles.ParseAddr(m.HostIP); m.HostIP != "" && err != nil {
			e.faults.Addf(at+".hostIP", "%v", err)
		}
	}
	e.to.PortMappings = raw
}

// bandwidth is in bits per second and bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

func (e *element) readBandwidth(path string, raw json.RawMessage) {
	var b bandwidth
	if !e.value(path, raw, &b) {
		return
	}
	for _, d := range []struct {
		name        string
		rate, burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		if d.rate == 0 && d.burst != 0 {
			e.faults.Addf(path+"."+d.name+"Rate", "is missing: %sBurst is nothing without it", d.name)
		}
	}
	if b != (bandwidth{}) {
		e.to.Bandwidth = raw
	}
}

// readDefaultRoute keeps the difference between no key and an empty list, which
// asks for the default route through the network's own gateway.
func (e *element) readDefaultRoute(path string, raw json.RawMessage) {
	var texts []string
	if !e.value(path, raw, &texts) {
		return
	}
	e.to.DefaultRoute = []netip.Addr{}
	for i, s := range texts {
		gw, err := roles.ParseAddr(s)
		if err != nil {
			e.faults.Addf(fmt.Sprintf("%s[%d]", path, i), "%q is no gateway: use its address, such as 10.1.0.1", s)
			continue
		}
		e.to.DefaultRoute = append(e.to.DefaultRoute, gw)
	}
}

func (e *element) readClaim(path string, raw json.RawMessage) {
	if e.value(path, raw, &e.to.IPAMClaim) && e.to.IPAMClaim != "" && !isSubdomain(e.to.IPAMClaim) {
		e.faults.Addf(path, "%q is no name of an IPAMClaim: use a-z, 0-9, '-' and '.', with a letter or digit at both ends", e.to.IPAMClaim)
	}
}

func (e *element) readDevice(path string, raw json.RawMessage) {
	if e.value(path, raw, &e.to.DeviceID) && e.to.DeviceID != "" && !isText(e.to.DeviceID) {
		e.faults.Addf(path, "%q is no device: use its PCI address, such as 0000:00:1f.6, or what the device plugin calls it", e.to.DeviceID)
	}
}
