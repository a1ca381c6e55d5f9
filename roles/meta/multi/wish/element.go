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

// element is an object of the JSON form while it is read. Its keys are read one by one, so that all
// faults are reported.
type element struct {
	faults *roles.Faults
	path   string
	to     *Network
}

// elementKeys returns the keys of an element with the functions that read them (the standard,
// section 4.1.2.1; deviceID is Multus's).
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
	given := e.decodeObject(e.path, raw)
	if given == nil {
		return
	}
	names := sortedKeys(given)
	keys := elementKeys()
	for _, name := range names {
		// encoding/json, and therefore Multus, ignores the case of keys
		i := slices.IndexFunc(keys, func(k elementKey) bool { return strings.EqualFold(k.name, name) })
		switch {
		case i < 0 && isThirdPartyKey(name):
		case i < 0:
			e.faults.Addf(e.path+"."+name, "is not known: use a key of docs/multi.md, or one in reverse domain name notation such as org.example.%s", name)
		case string(given[name]) != "null":
			keys[i].read(e, e.path+"."+keys[i].name, given[name])
		}
	}
	if e.to.Name == "" && !slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, "name") }) {
		e.faults.Addf(e.path+".name", "is missing: name a NetworkAttachmentDefinition")
	}
	if len(e.to.IPs) > 0 && e.to.IPAMClaim != "" {
		e.faults.Addf(e.path+".ips", "cannot be combined with ipam-claim-reference: remove one of them")
	}
	if len(e.to.IPs) > 0 && e.to.Extras.IP == noIP {
		e.faults.Addf(e.path+".ips", "cannot be combined with %s.ip \"none\": remove one of them", ExtrasKey)
	}
}

func sortedKeys(m map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(m)) }

// decodeObject decodes a JSON object. It returns nil after a fault.
func (e *element) decodeObject(path string, raw json.RawMessage) map[string]json.RawMessage {
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		e.faults.Addf(path, "must be an object, such as {\"name\": \"net-a\"}")
		return nil
	}
	m := map[string]json.RawMessage{}
	e.decodeValue(path, raw, &m)
	return m
}

// decodeValue decodes a value and reports whether that succeeded.
func (e *element) decodeValue(path string, raw json.RawMessage, into any) bool {
	return e.faults.Check(path, roles.Mismatch(coldjson.Unmarshal(raw, into)))
}

func (e *element) readName(path string, raw json.RawMessage) {
	if e.decodeValue(path, raw, &e.to.Name) && !IsSubdomain(e.to.Name) {
		e.faults.Addf(path, "%q is not the name of an object: use a-z, 0-9, '-' and '.', with a letter or digit at both ends", e.to.Name)
	}
}

func (e *element) readNamespace(path string, raw json.RawMessage) {
	if e.decodeValue(path, raw, &e.to.Namespace) && e.to.Namespace != "" && !IsLabel(e.to.Namespace) {
		e.faults.Addf(path, "%q is not a namespace: use 1 to %d of a-z, 0-9 and '-', with a letter or digit at both ends", e.to.Namespace, maxLabel)
	}
}

func (e *element) readInterface(path string, raw json.RawMessage) {
	if e.decodeValue(path, raw, &e.to.IfName) && e.to.IfName != "" {
		e.faults.Check(path, roles.LinkName(e.to.IfName))
	}
}

// readIPs treats an empty list like a missing key, as Multus does.
func (e *element) readIPs(path string, raw json.RawMessage) {
	var texts []string
	if !e.decodeValue(path, raw, &texts) {
		return
	}
	for i, s := range texts {
		ip, ok := parseIP(s)
		if !ok {
			e.faults.Addf(fmt.Sprintf("%s[%d]", path, i), "%q is not an address: use the form 10.1.0.5, 10.1.0.5/24 or fd00::5/64", s)
		}
		e.to.IPs = append(e.to.IPs, ip)
	}
}

// parseIP parses an address with or without a prefix length.
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
	if !e.decodeValue(path, raw, &s) {
		return
	}
	roles.MACKeys{{Path: path, Value: s}}.Check(e.faults)
	e.to.MAC = roles.UnicastMAC(s)
}

const guidBytes = 8

func (e *element) readGUID(path string, raw json.RawMessage) {
	var s string
	if !e.decodeValue(path, raw, &s) || s == "" {
		return
	}
	guid, err := net.ParseMAC(s)
	if err != nil || len(guid) != guidBytes {
		e.faults.Addf(path, "%q is not an InfiniBand GUID: use %d bytes in the form 24:8a:07:03:00:8d:ae:2f", s, guidBytes)
		return
	}
	e.to.InfinibandGUID = guid.String()
}

func (e *element) readArgs(path string, raw json.RawMessage) {
	if e.decodeObject(path, raw) != nil {
		e.to.CNIArgs = raw
	}
}

// portMapping has the standard's keys of a port mapping. Plugins may support more.
// Range is refused: the standard does not have it, and one entry would give a pod all
// ports of the node.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
	Range         int    `json:"range"`
}

func (e *element) readPortMappings(path string, raw json.RawMessage) {
	var list []portMapping
	if !e.decodeValue(path, raw, &list) || len(list) == 0 {
		return
	}
	for i, m := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		for _, p := range []struct {
			key  string
			port int
		}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
			if p.port < 1 || p.port > math.MaxUint16 {
				e.faults.Addf(at+"."+p.key, "%d is not a port: use 1 to %d", p.port, math.MaxUint16)
			}
		}
		if !slices.Contains([]string{"", "tcp", "udp", "sctp"}, strings.ToLower(m.Protocol)) {
			e.faults.Addf(at+".protocol", "%q is not known: use \"tcp\", \"udp\" or \"sctp\"", m.Protocol)
		}
		if _, err := roles.ParseAddr(m.HostIP); m.HostIP != "" && err != nil {
			e.faults.Addf(at+".hostIP", "%v", err)
		}
		if m.Range != 0 {
			e.faults.Addf(at+".range", "cannot be used in an annotation: list each port")
		}
	}
	e.to.PortMappings = raw
}

// bandwidth has rates in bits per second and bursts in bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

func (e *element) readBandwidth(path string, raw json.RawMessage) {
	var b bandwidth
	if !e.decodeValue(path, raw, &b) {
		return
	}
	for _, d := range []struct {
		name        string
		rate, burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		if d.rate == 0 && d.burst != 0 {
			e.faults.Addf(path+"."+d.name+"Rate", "is missing: %sBurst needs it", d.name)
		}
	}
	if b != (bandwidth{}) {
		e.to.Bandwidth = raw
	}
}

// readDefaultRoute distinguishes a missing key from an empty list. An empty list requests the
// default route through the network's own gateway.
func (e *element) readDefaultRoute(path string, raw json.RawMessage) {
	var texts []string
	if !e.decodeValue(path, raw, &texts) {
		return
	}
	e.to.DefaultRoute = []netip.Addr{}
	for i, s := range texts {
		gw, err := roles.ParseAddr(s)
		if err != nil {
			e.faults.Addf(fmt.Sprintf("%s[%d]", path, i), "%q is not a gateway: use its address, such as 10.1.0.1", s)
			continue
		}
		e.to.DefaultRoute = append(e.to.DefaultRoute, gw)
	}
}

func (e *element) readClaim(path string, raw json.RawMessage) {
	if e.decodeValue(path, raw, &e.to.IPAMClaim) && e.to.IPAMClaim != "" && !IsSubdomain(e.to.IPAMClaim) {
		e.faults.Addf(path, "%q is not the name of an IPAMClaim: use a-z, 0-9, '-' and '.', with a letter or digit at both ends", e.to.IPAMClaim)
	}
}

func (e *element) readDevice(path string, raw json.RawMessage) {
	if e.decodeValue(path, raw, &e.to.DeviceID) && e.to.DeviceID != "" && !isText(e.to.DeviceID) {
		e.faults.Addf(path, "%q is not a device: use its PCI address, such as 0000:00:1f.6, or the device plugin's ID", e.to.DeviceID)
	}
}
