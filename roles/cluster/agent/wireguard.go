package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// keyMark is the key in keep.db of this node's private key of WireGuard. No other file and no output
// has the private key.
const keyMark = "wireguard"

// deviceFamily returns the family of the WireGuard device that has the packets of a family. One device for
// both families is IPv4's.
func deviceFamily(c *cluster.Config, v6 bool) bool { return v6 && !c.SharesDevice() }

// wireGuardDevice returns flannel's name of the WireGuard device of a family.
func wireGuardDevice(v6 bool) string {
	if v6 {
		return "flannel-wg-v6"
	}
	return "flannel-wg"
}

// wireGuardOverhead is the number of bytes that WireGuard adds to a packet of a family: outer IPv4 or IPv6, UDP,
// type, receiver, counter and authentication tag.
func wireGuardOverhead(c *cluster.Config, v6 bool) int {
	const tunnel = 8 + 4 + 4 + 8 + 16
	if c.SharesDevice() {
		v6 = c.Backend.Mode != cluster.ModeIPv4
	}
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

// clamp clears and sets the bits that every private key of Curve25519 has so (RFC 7748, section 5). The kernel
// does the same, and would otherwise report a different key than it was given.
func clamp(key overlay.Secret) overlay.Secret {
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}

// saveNewKey makes and saves a private key. The key is valid even if it cannot be saved.
func saveNewKey(ctx context.Context, s *store.Store) (key overlay.Secret, err error) {
	_, _ = rand.Read(key[:]) // crypto/rand.Read never returns an error
	key = clamp(key)
	raw, err := json.Marshal(key[:])
	if err == nil {
		err = s.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.Mark(markKind, keyMark, raw) })
	}
	return key, err
}

// publicKey returns the public key of a family that this node's record has: that of the key in the kernel, so
// that the other nodes do not use a new key before this node does. Before this agent has given the device
// a key, it is the key that a former agent published.
func (k *knowledge) publicKey(v6 bool) string {
	key := k.device(v6).key
	if key == (overlay.Secret{}) {
		if n := k.ownRecord(); n != nil {
			_, data := n.Family(v6)
			if w, err := cluster.ParseWireGuard(data); err == nil {
				return w.PublicKey
			}
		}
		key = k.deviceKey(v6)
	}
	public, err := key.PublicKey()
	if err != nil {
		return ""
	}
	return public.String()
}

// deviceKey returns the private key of a family's device. Those of the two devices differ. With one key, a device
// accepts handshakes of the other node's device of the other family, and then sends to that device (roaming),
// which drops the packets. This happens while the ports of a cluster change.
func (k *knowledge) deviceKey(v6 bool) overlay.Secret {
	if k.key == (overlay.Secret{}) || !deviceFamily(k.config, v6) {
		return k.key
	}
	return clamp(sha256.Sum256(append([]byte("cnibox WireGuard IPv6"), k.key[:]...)))
}

// wireGuardData returns the backend data of one family of this node's record.
func (k *knowledge) wireGuardData(v6 bool) []byte {
	return cluster.WireGuard{PublicKey: k.publicKey(v6), Port: listenPort(&k.config.Backend, deviceFamily(k.config, v6))}.JSON()
}

func listenPort(b *cluster.Backend, v6 bool) uint16 {
	if v6 {
		return b.ListenPortV6
	}
	return b.ListenPort
}

// wireGuardSettings returns one family's keys and the interval of keepalive packets.
func (k *knowledge) wireGuardSettings(v6 bool) overlay.WireGuard {
	w := overlay.WireGuard{PrivateKey: k.deviceKey(v6), Keepalive: k.config.Backend.Keepalive}
	if psk, err := base64.StdEncoding.DecodeString(k.config.Backend.PSK); err == nil { // the configuration was checked
		copy(w.PresharedKey[:], psk)
	}
	return w
}

// underlayMTU returns the smallest MTU of the interfaces to the other nodes. A VXLAN device has the selected
// interface, and the packets of WireGuard have those of the routes to its peers.
func (k *knowledge) underlayMTU() int {
	mtu := 0
	for _, d := range k.devices {
		for i := range k.links {
			if l := &k.links[i]; slices.Contains(d.links, l.Index) && (mtu == 0 || l.MTU < mtu) {
				mtu = l.MTU
			}
		}
	}
	return cmp.Or(mtu, k.underlay.mtu)
}

// nodeAddresses returns the public addresses of the other nodes by their pod networks, whatever their
// backend is.
func (k *knowledge) nodeAddresses(v6 bool) map[netip.Prefix]netip.Addr {
	all := make(map[netip.Prefix]netip.Addr, len(k.snapshot.Nodes))
	for _, n := range k.snapshot.Nodes {
		public, _ := n.Family(v6)
		if subnet, ok := n.PodCIDR(v6); ok && public.IsValid() && n.Name != k.own.Name {
			all[subnet] = public
		}
	}
	return all
}

// wireGuardPeer returns the public key and the port of a node's device. For a device of both families these are in the
// data of IPv4: that of IPv6 has ListenPortV6 in flanneld's records, on which flanneld's device does not receive.
func (k *verdicts) wireGuardPeer(n *cluster.Node, v6 bool) (w cluster.WireGuard, err error) {
	v6 = deviceFamily(&k.config, v6)
	_, data := n.Family(v6)
	_, own := k.own.Family(v6)
	w, err = cluster.ParseWireGuard(data)
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

// endpoint returns the address of a node that tunnelled packets of a family are sent to.
func (k *verdicts) endpoint(n *cluster.Node, v6 bool) netip.Addr {
	if k.config.SharesDevice() {
		v6 = k.config.Backend.Mode == cluster.ModeIPv6 || k.config.Backend.Mode == cluster.ModeAuto && k.prefersIPv6(n)
	}
	public, _ := n.Family(v6)
	return public
}

// prefersIPv6 is flannel's choice in the mode auto. A public IPv4 address is preferred, because nodes behind a router that
// translates addresses reach it too. IPv6 needs public addresses at both ends.
func (k *verdicts) prefersIPv6(n *cluster.Node) bool {
	return n.PublicIP.IsPrivate() && n.PublicIPv6.IsValid() && !n.PublicIPv6.IsPrivate() && !k.own.PublicIPv6.IsPrivate()
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
