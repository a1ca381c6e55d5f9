package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// WireGuard is the backend data of wireguard for one family.
type WireGuard struct {
	// PublicKey has 32 bytes in base64.
	PublicKey string
	// Port is the node's UDP port, 0 for the one in the network's configuration.
	Port uint16
}

// ParseWireGuard decodes {"PublicKey":"…","Port":51820}. Port may be absent. For "null" and empty data
// the error is ErrInvalid, because a node without a key cannot be reached.
func ParseWireGuard(data json.RawMessage) (WireGuard, error) {
	var w WireGuard
	if d := bytes.TrimSpace(data); len(d) == 0 || string(d) == "null" {
		return w, fmt.Errorf("%w: no backend data", ErrInvalid)
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return WireGuard{}, fmt.Errorf(`backend data: %w: give {"PublicKey":"…","Port":51820}: %w`, ErrInvalid, err)
	}
	key, err := parseKey(w.PublicKey)
	if err != nil {
		return WireGuard{}, fmt.Errorf("backend data: PublicKey is %q: %w", shorten(w.PublicKey), err)
	}
	w.PublicKey = key
	return w, nil
}

// JSON returns the backend data in flannel's format.
func (w WireGuard) JSON() json.RawMessage {
	return fmt.Appendf(nil, `{"PublicKey":%q,"Port":%d}`, w.PublicKey, w.Port)
}

// parseKey returns a key of WireGuard in its only valid form. The error does not contain the key.
func parseKey(text string) (string, error) {
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(key) != 32 || bytes.Equal(key, make([]byte, 32)) {
		return "", fmt.Errorf("%w: give 32 bytes in base64, not all zero", ErrInvalid)
	}
	return base64.StdEncoding.EncodeToString(key), nil
}
