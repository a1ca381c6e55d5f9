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

	"github.com/cnibox/cnibox/roles/daemon/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// markKind and markNode name this node's identity in keep.db.
const (
	markKind = "dhcp"
	markNode = "node"
)

// maxIdentity leaves room for the type's byte in the client identifier option.
const maxIdentity = protocol.MaxOption - 1

// nodeID is a random text that tells this node's pods from those of the same name
// elsewhere on the wire. It is made once and outlives the boot.
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
			return err // another was faster
		}
		var b [8]byte
		_, _ = rand.Read(b[:]) // it does not fail
		id = hex.EncodeToString(b[:])
		raw, err := json.Marshal(id)
		if err != nil {
			return err
		}
		return tx.Mark(markKind, markNode, raw)
	})
	return id, err
}

// identity is the text that an attachment is known to servers by. It names the
// pod, if the configuration and the runtime do, so that a container that comes
// back is the same client; else the container, as the reference does.
func identity(c *protocol.Conf, key store.Key, pod, node string) string {
	id := key.ContainerID + "/" + key.Network + "/" + key.IfName
	if c.IPAM.ClientID == protocol.ByPod && pod != "" {
		id = fmt.Sprintf("%s/%s/%s/%s", node, pod, key.Network, key.IfName)
	}
	if len(id) <= maxIdentity {
		return id
	}
	// The end tells interfaces apart: it must not be cut off.
	sum := sha256.Sum256([]byte(id))
	return id[:maxIdentity-2*len(sum)] + hex.EncodeToString(sum[:])
}

// clientID is the DHCPv4 client identifier (RFC 2132, section 9.14): type 0, no
// hardware address, and the identity.
func clientID(identity string) []byte { return append([]byte{0}, identity...) }

// duid is the DHCPv6 client identifier (RFC 6355). It follows from the identity
// alone: each container is a client of its own.
func duid(identity string) dhcpv6.DUID {
	sum := sha256.Sum256([]byte(identity))
	return &dhcpv6.DUIDUUID{UUID: [16]byte(sum[:16])}
}

// providedIdentity is the client identifier that the configuration provides
// itself, if it does.
func providedIdentity(options []protocol.Option) (string, bool) {
	i := slices.IndexFunc(options, func(o protocol.Option) bool { return o.Code == protocol.OptionClientIdentifier })
	if i < 0 {
		return "", false
	}
	return string(options[i].Value), true
}
