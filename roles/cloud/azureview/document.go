package azureview

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// The types of azure's files, with its keys in their order. Lists without an element are null.

// document is one of the two files.
type document struct {
	Network *networkPart `json:"Network,omitempty"`
	IPAM    *ipamPart    `json:"IPAM,omitempty"`
	Own     ownPart      `json:"cnibox"`
}

// ownPart is cnibox's part of a file: see ownKey.
type ownPart struct {
	ViewOf string `json:"viewOf"`
	store.Revision
}

type header struct {
	Version   string
	TimeStamp time.Time
}

func headerOf(h *roles.Host, now time.Time) header { return header{h.Program, now.UTC()} }

type networkPart struct {
	header
	ExternalInterfaces map[string]externalInterface
}

type externalInterface struct {
	Name                     string
	Networks                 map[string]networkInfo
	Subnets                  []string
	BridgeName               string
	MacAddress               []byte
	IPAddresses              []ipNet
	Routes                   []routeInfo
	IPv4Gateway, IPv6Gateway netip.Addr
}

type networkInfo struct {
	ID               string `json:"Id"`
	Mode             string
	VLAN             int `json:"VlanId"`
	Subnets          []subnetInfo
	Endpoints        struct{} // encode adds them
	DNS              dnsInfo
	EnableSnatOnHost bool
}

type subnetInfo struct {
	Family  int
	Prefix  ipNet
	Gateway netip.Addr
}

type endpointInfo struct {
	SandboxKey, IfName, HostIfName                        string
	MacAddress                                            []byte
	InfraVnetIP                                           ipNet
	IPAddresses                                           []ipNet
	Gateways                                              []netip.Addr
	DNS                                                   dnsInfo
	Routes                                                []routeInfo
	VlanID                                                int
	EnableSnatOnHost, EnableInfraVnet, EnableMultitenancy bool
	NetworkNameSpace                                      string `json:",omitempty"`
	ContainerID                                           string
	PODName                                               string `json:",omitempty"`
	PODNameSpace                                          string `json:",omitempty"`
}

type routeInfo struct {
	Dst      ipNet
	Src      string
	Gw       netip.Addr
	Protocol int
	DevName  string
	Scope    int
}

type dnsInfo struct {
	Suffix  string
	Servers []string
}

// ipNet is a net.IPNet of Go.
type ipNet struct {
	IP   netip.Addr
	Mask []byte
}

type ipamPart struct {
	header
	AddressSpaces map[string]addressSpace // azure has one
}

type addressSpace struct {
	ID    string `json:"Id"`
	Scope int
	Pools map[string]poolInfo
}

type poolInfo struct {
	ID                 string `json:"Id"`
	IfName             string
	Subnet             ipNet
	Gateway            netip.Addr
	Addresses          struct{} // encode adds them
	IsIPv6             bool
	Priority, RefCount int
}

// The beginnings of lines for an object with hundreds of members, for each member, and for each field of a member. The
// depths are the same in both files.
const (
	listLine   = "\n\t\t\t\t\t\t"
	memberLine = listLine + "\t"
	fieldLine  = memberLine + "\t"
)

// encode returns the file, indented as azure's, with the revision that it shows. lists are the texts of the members of
// the objects key, in their order: encoding/json takes 4 ms for those of 250 endpoints.
func (d *document) encode(h *roles.Host, r store.Revision, key string, lists [][]byte) ([]byte, error) {
	d.Own = ownPart{h.Store.Path(), store.Revision{File: r.File.UTC(), Number: r.Number}}
	raw, err := coldjson.Marshal(d)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, raw, "", "\t"); err != nil {
		return nil, err
	}
	size := indented.Len()
	for _, list := range lists {
		size += len(list) + len(listLine)
	}
	rest, out := indented.Bytes(), make([]byte, 0, size)
	empty := []byte(listLine + `"` + key + `": {}`) // no string of JSON has a line break
	for _, list := range lists {
		before, after, _ := bytes.Cut(rest, empty)
		out = append(append(append(out, before...), empty[:len(empty)-1]...), list...)
		if len(list) > 0 {
			out = append(out, listLine...)
		}
		out, rest = append(out, '}'), after
	}
	return append(out, rest...), nil
}

// appendQuoted appends a string of JSON.
func appendQuoted(b []byte, s string) []byte {
	quoted, _ := coldjson.Marshal(s) // a string always has JSON
	return append(b, quoted...)
}

// convert returns a list of azure's form.
func convert[A, B any](all []A, to func(A) B) []B {
	if all == nil {
		return nil
	}
	out := make([]B, len(all))
	for i, one := range all {
		out[i] = to(one)
	}
	return out
}

func netOf(p netip.Prefix) ipNet {
	if !p.IsValid() {
		return ipNet{IP: p.Addr()}
	}
	return ipNet{p.Addr().WithZone(""), net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// macOf returns the bytes of a hardware address, nil if it is not one.
func macOf(s string) []byte {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return nil
	}
	return mac
}
