package dhcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// markKind and markNode name this node's identity in keep.db.
const (
	markKind = "dhcp"
	markNode = "node"
)

// maxIdentity leaves room for the type's byte in the client identifier option.
const maxIdentity = protocol.MaxOption - 1

// nodeID returns a random text that is part of the identities of this node's pods, so
// that a pod of the same name on another node is another client. It is made once and
// survives reboots.
func nodeID(ctx context.Context, s *store.Store) (string, error) {
	var id string
	read := func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, markNode)
		if err != nil || !ok {
			return err
		}
		return json.Unmarshal(raw, &id)
	}
	if err := s.KeepView(ctx, read); err != nil || id != "" {
		return id, err
	}
	err := s.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		if err := read(tx); err != nil || id != "" {
			return err // another process made it meanwhile
		}
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		id = hex.EncodeToString(b[:])
		raw, err := json.Marshal(id)
		if err != nil {
			return err
		}
		return tx.Mark(markKind, markNode, raw)
	})
	return id, err
}

// identity returns the text that identifies an attachment to servers. It contains the pod's name if
// the configuration requires that and the runtime passes the name, so that a restarted pod is the
// same client. Otherwise it contains the container ID, as the reference's does.
func identity(c *protocol.Conf, key store.Key, pod, node string) string {
	id := key.ContainerID + "/" + key.Network + "/" + key.IfName
	if c.IPAM.ClientID == protocol.ByPod && pod != "" {
		id = fmt.Sprintf("%s/%s/%s/%s", node, pod, key.Network, key.IfName)
	}
	if len(id) <= maxIdentity {
		return id
	}
	// The end distinguishes interfaces, so it must not be cut off.
	sum := sha256.Sum256([]byte(id))
	return id[:maxIdentity-2*len(sum)] + hex.EncodeToString(sum[:])
}

// clientID returns the DHCPv4 client identifier (RFC 2132, section 9.14): type 0, which
// is not a hardware address, and the identity.
func clientID(identity string) []byte { return append([]byte{0}, identity...) }

// duid returns the DHCPv6 client identifier (RFC 6355). It depends on the identity
// alone, so that each container is a separate client.
func duid(identity string) dhcpv6.DUID {
	sum := sha256.Sum256([]byte(identity))
	return &dhcpv6.DUIDUUID{UUID: [16]byte(sum[:16])}
}

// providedIdentity returns the client identifier that the configuration provides among
// its options, if any.
func providedIdentity(options []protocol.Option) (string, bool) {
	i := slices.IndexFunc(options, func(o protocol.Option) bool { return o.Code == protocol.OptionClientIdentifier })
	if i < 0 {
		return "", false
	}
	return string(options[i].Value), true
}
