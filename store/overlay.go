package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
)

// OverlayFile is the agent's hand-off file for CNI calls, in a node's run directory.
const OverlayFile = "overlay.json"

// overlaySchema is the format of the hand-off file, maxOverlay the bound of its size.
const (
	overlaySchema = 1
	maxOverlay    = 1 << 20
)

// Overlay is the content of the hand-off file: this node's pod networks, and whether pods can be
// attached to them.
type Overlay struct {
	Schema int       `json:"schema"`
	BootID string    `json:"bootId"`
	Time   time.Time `json:"time"`
	// Ready is true when the device exists and the agent has tried to program every peer. Until then
	// Reason has the reason.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// IPMasq is true if the agent masquerades traffic that leaves the network, so that bridges do not.
	IPMasq bool `json:"ipMasq"`
	// IPMasqExcept are the networks that pods reach with their own addresses, besides the pod networks.
	IPMasqExcept []netip.Prefix `json:"ipMasqExcept,omitempty"`
	// MTU is the smaller MTU of the two families.
	MTU   int            `json:"mtu"`
	IPv4  *OverlayFamily `json:"ipv4,omitempty"`
	IPv6  *OverlayFamily `json:"ipv6,omitempty"`
	Peers OverlayPeers   `json:"peers"`
	// Egress is set if the agent gives pods egress addresses.
	Egress *OverlayEgress `json:"egress,omitempty"`
}

// OverlayEgress says for which pods an ADD asks the agent.
type OverlayEgress struct {
	// Namespaces are those with an annotation, in order.
	Namespaces []string `json:"namespaces"`
}

// OverlayFamily is one address family of an Overlay.
type OverlayFamily struct {
	// Networks are the cluster's pod networks, Subnet is this node's subnet.
	Networks []netip.Prefix `json:"networks"`
	Subnet   netip.Prefix   `json:"subnet"`
	MTU      int            `json:"mtu"`
}

// OverlayPeers counts the other nodes. A node with both families counts once.
type OverlayPeers struct {
	Wanted     int `json:"wanted"`
	Programmed int `json:"programmed"`
}

// WriteOverlay replaces the hand-off file atomically.
func WriteOverlay(path string, o *Overlay) error {
	c := *o
	c.Schema = overlaySchema
	raw, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %q: %w", path, err)
	}
	if err := smallfile.Replace(path, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write hand-off file: %w", err)
	}
	return nil
}

// ReadOverlay reads the hand-off file. ErrNotFound means that no agent has written one, ErrSchema that a
// newer program has written it.
func ReadOverlay(path string) (*Overlay, error) {
	raw, err := smallfile.ReadOwn(path, maxOverlay)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read hand-off file: %w", err)
	}
	var o Overlay
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrInvalid, path, err)
	}
	if o.Schema != overlaySchema {
		return nil, fmt.Errorf("%w: %q: schema %d, this program knows %d", ErrSchema, path, o.Schema, overlaySchema)
	}
	return &o, nil
}
