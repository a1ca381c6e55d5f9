package roles

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"unicode"
)

// MaxLinkName is the longest name of an interface: IFNAMSIZ without the final NUL.
const MaxLinkName = 15

// LinkName returns an error for a name that an interface cannot have. The kernel refuses
// "/", ":" and white space, which includes the byte 0xa0, also within UTF-8. It reads "%"
// as a pattern, as nftables reads "*", and it reserves "all" and "default" for sysctls.
func LinkName(s string) error {
	if s != "" && len(s) <= MaxLinkName && s != "." && s != ".." && s != "all" && s != "default" &&
		!strings.ContainsAny(s, "/:%*\x00") && !strings.ContainsFunc(s, unicode.IsSpace) && strings.IndexByte(s, 0xa0) < 0 {
		return nil
	}
	return fmt.Errorf("%q is not an interface name: 1 to %d bytes without '/', ':', '%%', '*' and white space, not \"all\" or \"default\"", s, MaxLinkName)
}

// IsName reports whether s follows the spec's rule for container IDs and network names
// (1.1.0, sections 1 and 2): a letter or digit, then letters, digits, dots, underscores
// and hyphens.
func IsName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != ""
}

// UnicastMAC returns a unicast MAC address in the usual colon form, or "" if s is a
// multicast address, zero, or not a MAC address.
func UnicastMAC(s string) string {
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != 6 || m[0]&1 != 0 || bytes.Equal(m, make([]byte, 6)) {
		return ""
	}
	return m.String()
}

// MACKeys are the keys that may set a hardware address, by precedence. An empty
// value sets none.
type MACKeys []MACKey

// MACKey is one key: its JSON path and its value.
type MACKey struct{ Path, Value string }

// Check reports values that are not unicast MAC addresses.
func (k MACKeys) Check(f *Faults) {
	for _, m := range k {
		if m.Value != "" && UnicastMAC(m.Value) == "" {
			f.Addf(m.Path, "%q is not a unicast MAC address: use the form 02:00:00:00:00:01", m.Value)
		}
	}
}

// Value returns the first address that is set, in the usual colon form, or "".
func (k MACKeys) Value() string {
	for _, m := range k {
		if m.Value != "" {
			return UnicastMAC(m.Value)
		}
	}
	return ""
}

// MAC returns the address that a call requests, in the usual colon form, or "".
// runtimeConfig precedes CNI_ARGS, which precede the configuration.
func (a Args) MAC(runtime, conf string) (string, error) {
	if m := UnicastMAC(runtime); m != "" {
		return m, nil
	}
	m, err := a.MACArg()
	if err == nil && m == "" {
		m = UnicastMAC(conf)
	}
	return m, err
}

// MACArg returns the value of the key MAC in CNI_ARGS, in the usual colon form, or "".
func (a Args) MACArg() (string, error) {
	m := a.Get("MAC")
	if m == "" || UnicastMAC(m) != "" {
		return UnicastMAC(m), nil
	}
	return "", &EnvError{Name: "CNI_ARGS: MAC", Reason: fmt.Sprintf("%q is not a unicast MAC address: use the form 02:00:00:00:00:01", m)}
}
