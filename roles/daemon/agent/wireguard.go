package agent

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// keyMark is the key in keep.db of this node's private key of WireGuard. No other file and no output
// has the private key.
const keyMark = "wireguard"

// wireGuardDevice returns flannel's name of the WireGuard device.
func wireGuardDevice(v6 bool) string {
	if v6 {
		return "flannel-wg-v6"
	}
	return "flannel-wg"
}

// wireGuardOverhead is the number of bytes that WireGuard adds to a packet: outer IPv4 or IPv6, UDP,
// type, receiver, counter and authentication tag.
func wireGuardOverhead(v6 bool) int {
	const tunnel = 8 + 4 + 4 + 8 + 16
	if v6 {
		return 40 + tunnel
	}
	return 20 + tunnel
}

// loadKey reads the private key, and makes it if there is none. A key that cannot be saved is valid
// until the agent ends.
func (a *agent) loadKey(ctx context.Context) error {
	none := overlay.Secret{}
	key, err := readKey(ctx, a.host.Store)
	if err == nil && key == none && a.key == none {
		key, err = saveNewKey(ctx, a.host.Store)
		if err != nil {
			a.log.Warn("cannot save this node's WireGuard key", "error", err)
			err = nil
		}
	}
	if err != nil || key == none || key == a.key {
		return err
	}
	if a.key != none {
		a.log.Info("this node has a new WireGuard key")
	}
	a.key = key
	return nil
}

// readKey reads the private key. It returns the zero Secret if there is none.
func readKey(ctx context.Context, s *store.Store) (key overlay.Secret, err error) {
	err = s.KeepView(ctx, func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, keyMark)
		if err != nil || !ok {
			return err
		}
		var b []byte // in base64
		if json.Unmarshal(raw, &b) != nil || len(b) != len(key) || overlay.Secret(b) == key {
			return fmt.Errorf("read this node's WireGuard key: %w: run 'cnibox agent rotate-key'", store.ErrDamaged)
		}
		key = overlay.Secret(b)
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return key, nil
	}
	return key, err
}

// saveNewKey makes and saves a private key. The key is valid even if it cannot be saved.
func saveNewKey(ctx context.Context, s *store.Store) (key overlay.Secret, err error) {
	_, _ = rand.Read(key[:]) // crypto/rand.Read never returns an error
	// Clear and set the bits that every private key of Curve25519 has so (RFC 7748, section 5). The
	// kernel does the same, and would otherwise report a different key than it was given.
	key[0] &= 248
	key[31] = key[31]&127 | 64
	raw, err := json.Marshal(key[:])
	if err == nil {
		err = s.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.Mark(markKind, keyMark, raw) })
	}
	return key, err
}

// publicKey returns the public key of a family that this node's record has: that of the key in the kernel, so
// that the other nodes do not use a new key before this node does.
func (a *agent) publicKey(v6 bool) string {
	key := a.families[0].key
	if v6 {
		key = a.families[1].key
	}
	if key == (overlay.Secret{}) {
		key = a.key
	}
	public, err := key.PublicKey()
	if err != nil {
		return ""
	}
	return public.String()
}

// wireGuardData returns the backend data of one family of this node's record.
func (a *agent) wireGuardData(v6 bool) []byte {
	return cluster.WireGuard{PublicKey: a.publicKey(v6), Port: listenPort(&a.config.Backend, v6)}.JSON()
}

func listenPort(b *cluster.Backend, v6 bool) uint16 {
	if v6 {
		return b.ListenPortV6
	}
	return b.ListenPort
}

// wireGuardSettings returns the keys and the interval of keepalive packets.
func (a *agent) wireGuardSettings() overlay.WireGuard {
	w := overlay.WireGuard{PrivateKey: a.key, Keepalive: a.config.Backend.Keepalive}
	if psk, err := base64.StdEncoding.DecodeString(a.config.Backend.PSK); err == nil { // the configuration was checked
		copy(w.PresharedKey[:], psk)
	}
	return w
}

// nodeAddresses returns the public addresses of the other nodes by their pod networks, whatever their
// backend is.
func (a *agent) nodeAddresses(v6 bool) map[netip.Prefix]netip.Addr {
	all := make(map[netip.Prefix]netip.Addr, len(a.snapshot.Nodes))
	for _, n := range a.snapshot.Nodes {
		public := n.PublicIP
		if v6 {
			public = n.PublicIPv6
		}
		if subnet, ok := subnetOf(n, v6); ok && public.IsValid() && n.Name != a.own.Name {
			all[subnet] = public
		}
	}
	return all
}

// wireGuardPeer returns the public key and the port of a node.
func (k *verdicts) wireGuardPeer(n *cluster.Node, v6 bool) (w cluster.WireGuard, err error) {
	raw, own := n.BackendData, k.own.BackendData
	if v6 {
		raw, own = n.BackendV6Data, k.own.BackendV6Data
	}
	w, err = cluster.ParseWireGuard(raw)
	if err != nil {
		return w, err
	}
	if mine, err := cluster.ParseWireGuard(own); err == nil && mine.PublicKey == w.PublicKey {
		return w, fmt.Errorf("its public key %s is this node's: run 'cnibox agent rotate-key' on one of them", w.PublicKey)
	}
	if w.Port == 0 {
		w.Port = listenPort(&k.config.Backend, v6)
	}
	return w, nil
}

// rotateKey makes a new private key, which a running agent uses within a minute.
func rotateKey(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
	key, err := saveNewKey(ctx, h.Store)
	if err != nil {
		return nil, fmt.Errorf("save the new key: %w", err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	return fmt.Sprintf("this node's new public key is %s; a running agent uses it within a minute", public), nil
}
