package metadata

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// anyMAC stands for any interface.
const anyMAC = "*"

// parseMAC returns a hardware address in colon notation. Clouds write it with colons, dashes, dots
// or no separator, in upper or lower case.
func parseMAC(s string) (string, error) {
	if s == anyMAC {
		return s, nil
	}
	digits, err := bareMAC(s)
	if err != nil {
		return "", err
	}
	b, err := hex.DecodeString(digits)
	switch {
	case err != nil || len(b) != 6:
		return "", fmt.Errorf("%.40q is not a MAC", s)
	case string(b) == "\x00\x00\x00\x00\x00\x00":
		return "", errors.New("the MAC is all zero")
	case b[0]&1 != 0:
		return "", fmt.Errorf("MAC %s is a multicast address", s)
	}
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]), nil
}

// bareMAC removes the separators, which follow each 2 or 4 digits.
func bareMAC(s string) (string, error) {
	for sep, group := range map[string]int{":": 2, "-": 2, ".": 4} {
		if !strings.Contains(s, sep) {
			continue
		}
		parts := strings.Split(s, sep)
		for _, p := range parts {
			if len(p) != group {
				return "", fmt.Errorf("%.40q is not a MAC", s)
			}
		}
		return strings.Join(parts, ""), nil
	}
	return s, nil
}
