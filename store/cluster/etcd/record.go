package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
)

// maxRecord bounds the size of a node's record.
const maxRecord = 64 << 10

// attributes is the value of a record, as flannel writes it. 0.0.0.0 stands for no
// IPv4 address. flannel ignores Author.
type attributes struct {
	PublicIP      netip.Addr
	PublicIPv6    *netip.Addr
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
	Author        cluster.Author  `json:",omitzero"`
}

// keyOf returns the last part of a node's key: its subnets, as 10.5.52.0-24 or
// 10.5.52.0-24&fd00:1::-64, with 0.0.0.0-0 if there is no IPv4.
func keyOf(subnets []netip.Prefix) string {
	v4, v6 := "0.0.0.0-0", ""
	for _, p := range subnets {
		if text := p.Addr().String() + "-" + strconv.Itoa(p.Bits()); p.Addr().Is4() {
			v4 = text
		} else {
			v6 = "&" + text
		}
	}
	return v4 + v6
}

// subnetsOf is the inverse of keyOf.
func subnetsOf(key string) ([]netip.Prefix, error) {
	v4, v6, both := strings.Cut(key, "&")
	var out []netip.Prefix
	if p, err := subnet(v4); err != nil || !p.Addr().Is4() {
		return nil, fmt.Errorf("%w: key is not of the form 10.5.52.0-24 or 10.5.52.0-24&fd00:1::-64", cluster.ErrInvalid)
	} else if p.Bits() > 0 {
		out = append(out, p)
	}
	if !both {
		return out, nil
	}
	p, err := subnet(v6)
	if err != nil || p.Addr().Is4() {
		return nil, fmt.Errorf("%w: key is not of the form 10.5.52.0-24 or 10.5.52.0-24&fd00:1::-64", cluster.ErrInvalid)
	}
	return append(out, p), nil
}

func subnet(text string) (netip.Prefix, error) {
	i := strings.LastIndexByte(text, '-')
	if i < 0 {
		return netip.Prefix{}, cluster.ErrInvalid
	}
	return netip.ParsePrefix(text[:i] + "/" + text[i+1:])
}

// decode decodes a record. With an error it also returns the valid part.
func decode(name string, value []byte) (cluster.Node, error) {
	n := cluster.Node{Name: name}
	var err error
	n.PodCIDRs, err = subnetsOf(name)
	if err != nil {
		return n, err
	}
	if len(value) > maxRecord {
		return n, fmt.Errorf("%w: record is longer than %d bytes", cluster.ErrInvalid, maxRecord)
	}
	var a attributes
	if err := json.Unmarshal(value, &a); err != nil {
		return n, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	if a.PublicIP.IsValid() && a.PublicIP != netip.IPv4Unspecified() {
		n.PublicIP = a.PublicIP
	}
	if a.PublicIPv6 != nil && !a.PublicIPv6.IsUnspecified() {
		n.PublicIPv6 = *a.PublicIPv6
	}
	n.BackendType, n.BackendData, n.BackendV6Data = a.BackendType, nonNull(a.BackendData), nonNull(a.BackendV6Data)
	n.Author = a.Author
	return n, n.Check()
}

// nonNull returns nil for JSON null and empty text.
func nonNull(raw json.RawMessage) json.RawMessage {
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	return raw
}

// encode is the inverse of decode.
func encode(n *cluster.Node) ([]byte, error) {
	a := attributes{PublicIP: netip.IPv4Unspecified(), BackendType: n.BackendType, BackendData: n.BackendData, BackendV6Data: n.BackendV6Data, Author: n.Author}
	if n.PublicIP.IsValid() {
		a.PublicIP = n.PublicIP
	}
	if n.PublicIPv6.IsValid() {
		a.PublicIPv6 = &n.PublicIPv6
	}
	return json.Marshal(a)
}
