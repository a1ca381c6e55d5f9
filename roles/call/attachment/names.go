// Package attachment handles the recorded attachments of a node. It derives names and labels
// from an attachment's key, finds dead attachments, removes attachments with all of their
// objects, and records the objects that the attachments of a network share.
package attachment

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
	// maxLabel is the longest label in bytes of an nftables element. The kernel allows
	// 255 bytes of userdata.
	maxLabel = 120
	// maxAlias is the kernel's limit in bytes. Two addresses, the longest network name of
	// Kubernetes and a container ID of 64 digits fit, so lost state can be rebuilt with
	// its owners.
	maxAlias = 255
)

// digest returns the hash from which all names of an attachment are derived. It includes
// the lengths of the texts, so that different keys never give the same input.
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

// HostLinkPrefix begins the names of interfaces on the host.
const HostLinkPrefix = "veth"

// HostLink returns the name of the interface on the host: "veth" and 11 hex digits. It
// depends on the key only, so DEL finds the interface without a record.
func HostLink(key store.Key) string { return HostLinkWithPrefix(HostLinkPrefix, key) }

// HostLinkWithPrefix returns HostLink with another prefix, of 4 bytes at most.
func HostLinkWithPrefix(prefix string, key store.Key) string {
	d := digest(key)
	return prefix + hex.EncodeToString(d[:])[:11]
}

// ExtraLink returns the name of another interface of an attachment on the host: a prefix,
// and hex digits up to the longest interface name.
func ExtraLink(prefix string, key store.Key) string {
	d := digest(key)
	return (prefix + hex.EncodeToString(d[:]))[:roles.MaxLinkName]
}

// MAC returns a locally administered unicast address that is derived from the key and a
// purpose ("container", "host"). udev does not replace an address that is set at
// creation.
func MAC(key store.Key, purpose string) string {
	d := digest(store.Key{Network: key.Network, ContainerID: key.ContainerID, IfName: key.IfName + "\x00" + purpose})
	m := net.HardwareAddr(d[:6])
	m[0] = m[0]&^1 | 2
	return m.String()
}

// Label returns the text that identifies an attachment on an interface or nftables
// element: the prefix and 16 hex digits.
func Label(key store.Key) string {
	d := digest(key)
	return LabelPrefix + hex.EncodeToString(d[:8])
}

// Alias returns an interface's alias: the Label, the addresses, then network, interface
// and container, up to 255 bytes. People and a rebuild read it.
func Alias(key store.Key, addrs []netip.Prefix) string {
	parts := []string{Label(key)}
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	return truncated(strings.Join(parts, " ")+" "+key.Network+"/"+key.IfName+"/"+key.ContainerID, maxAlias)
}

// truncated returns at most limit bytes of s, as valid UTF-8.
func truncated(s string, limit int) string { return strings.ToValidUTF8(s[:min(len(s), limit)], "") }

// AliasInfo is a parsed alias.
type AliasInfo struct {
	Label string
	// Device is the host's name of a device that was moved, "" for other links.
	Device    string
	Addresses []netip.Prefix
	Key       store.Key
	// Whole means that Key was not truncated: Key hashes to the label.
	Whole bool
}

// ParseAlias parses an alias of Alias or DeviceAlias. ok is false for any other alias.
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

// SharedLabel returns the label of the nftables elements that a network's attachments
// share.
func SharedLabel(network string) string {
	return truncated(SharedAlias+" "+network, maxLabel)
}

// BridgeLock returns the name of the lock of a bridge and of its addresses.
func BridgeLock(bridge string) string { return "bridge/" + bridge }
