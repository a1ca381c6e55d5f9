// Package record handles the recorded attachments of a node: the names and
// labels that follow from an attachment's key, whether its container is alive,
// how it is removed with everything that it made, and which objects the
// attachments of a network share.
package record

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// LabelPrefix begins the labels of our interfaces and nftables elements.
const LabelPrefix = "cnibox:"

const (
	// maxLabel bounds labels of nftables elements: the kernel allows 255 bytes
	// of userdata.
	maxLabel = 120
	// maxAlias is the kernel's bound. Two addresses, the longest network name
	// of Kubernetes and a runtime's container ID of 64 digits fit, so state that
	// is lost can be rebuilt with its owners.
	maxAlias = 255
)

// digest is the hash that every derived name of an attachment comes from.
// Lengths are hashed with the texts, so that different keys never give the same input.
func digest(key store.Key) [sha256.Size]byte {
	h := sha256.New()
	for _, s := range []string{key.Network, key.ContainerID, key.IfName} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// HostLinkPrefix is what the host side's interfaces begin with.
const HostLinkPrefix = "veth"

// HostLink is the name of the host side's interface: "veth" and 11 hex digits.
// It follows from the key alone, so DEL finds it without a record.
func HostLink(key store.Key) string { return HostLinkWithPrefix(HostLinkPrefix, key) }

// HostLinkWithPrefix is HostLink with another prefix, of 4 bytes at most.
func HostLinkWithPrefix(prefix string, key store.Key) string {
	d := digest(key)
	return prefix + hex.EncodeToString(d[:])[:11]
}

// ExtraLink is the name of another interface of an attachment in the host: a prefix
// and as many hex digits as an interface's name has room for.
func ExtraLink(prefix string, key store.Key) string {
	d := digest(key)
	return (prefix + hex.EncodeToString(d[:]))[:roles.MaxLinkName]
}

// MAC is a locally administered unicast address that follows from the key and
// a purpose ("container", "host"). Given at creation, udev does not rewrite it.
func MAC(key store.Key, purpose string) string {
	d := digest(store.Key{Network: key.Network, ContainerID: key.ContainerID, IfName: key.IfName + "\x00" + purpose})
	m := net.HardwareAddr(d[:6])
	m[0] = m[0]&^1 | 2
	return m.String()
}

// Label identifies an attachment on an interface or nftables element: the
// prefix and 16 hex digits.
func Label(key store.Key) string {
	d := digest(key)
	return LabelPrefix + hex.EncodeToString(d[:8])
}

// Alias is the Label followed by text for people and for a rebuild: addresses, then
// network, interface and container, up to 255 bytes.
func Alias(key store.Key, addrs []netip.Prefix) string {
	parts := []string{Label(key)}
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	s := strings.Join(parts, " ") + " " + key.Network + "/" + key.IfName + "/" + key.ContainerID
	if len(s) > maxAlias {
		s = s[:maxAlias]
	}
	return strings.ToValidUTF8(s, "")
}

// AliasInfo is the content of an alias.
type AliasInfo struct {
	Label string
	// Device is the host's name of a device that was moved, "" for other links.
	Device    string
	Addresses []netip.Prefix
	Key       store.Key
	// Whole means that Key was not truncated: it hashes to the label.
	Whole bool
}

// ParseAlias reads what Alias or DeviceAlias wrote; ok is false for any other alias.
func ParseAlias(s string) (info AliasInfo, ok bool) {
	label, rest, _ := strings.Cut(s, " ")
	if !IsLabel(label) {
		return AliasInfo{}, false
	}
	info.Label = label
	if word, more, found := strings.Cut(rest, " "); found && !strings.Contains(word, "/") {
		info.Device, rest = word, more
	}
	for {
		word, more, found := strings.Cut(rest, " ")
		p, err := netip.ParsePrefix(word)
		if err != nil {
			break
		}
		info.Addresses = append(info.Addresses, p)
		if !found {
			return info, true
		}
		rest = more
	}
	if f := strings.SplitN(rest, "/", 3); len(f) == 3 {
		info.Key = store.Key{Network: f[0], IfName: f[1], ContainerID: f[2]}
		info.Whole = Label(info.Key) == label
	}
	return info, true
}

// IsLabel reports whether s has the form of Label.
func IsLabel(s string) bool {
	hexa, ok := strings.CutPrefix(s, LabelPrefix)
	if !ok || len(hexa) != 16 {
		return false
	}
	_, err := hex.DecodeString(hexa)
	return err == nil
}

// SharedLabel is the label of nftables elements that a network's attachments share.
func SharedLabel(network string) string {
	s := SharedAlias + " " + network
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return s
}
