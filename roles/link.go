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

// LinkName judges a configuration's interface name: nil, or what is wrong with
// it. It knows the kernel's rules (0xa0 is a space, in UTF-8 too), that the kernel takes "%" and nftables "*" for
// a pattern, and that the kernel keeps two names for its settings.
func LinkName(s string) error {
	if s != "" && len(s) <= MaxLinkName && s != "." && s != ".." && s != "all" && s != "default" &&
		!strings.ContainsAny(s, "/:%*\x00") && !strings.ContainsFunc(s, unicode.IsSpace) && strings.IndexByte(s, 0xa0) < 0 {
		return nil
	}
	return fmt.Errorf("%q is no interface name: 1 to %d bytes without '/', ':', '%%', '*' and white space, not \"all\" or \"default\"", s, MaxLinkName)
}

// IsName is the spec's rule for container IDs and network names (1.1.0, sections 1
// and 2): a letter or digit, then letters, digits, dots, underscores and hyphens.
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

// UnicastMAC is an Ethernet address that an interface can have, in the usual
// colon form, or "" for one of a group, of zeros, or none at all.
func UnicastMAC(s string) string {
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != 6 || m[0]&1 != 0 || bytes.Equal(m, make([]byte, 6)) {
		return ""
	}
	return m.String()
}

// MACKeys are the keys by which a configuration may ask for a hardware address,
// first choice first. "" is not asked.
type MACKeys []MACKey

// MACKey is one of them: where it stands, and its value.
type MACKey struct{ Path, Value string }

// Check reports values that no interface can have.
func (k MACKeys) Check(f *Faults) {
	for _, m := range k {
		if m.Value != "" && UnicastMAC(m.Value) == "" {
			f.Addf(m.Path, "%q is no Ethernet address of one interface: use the form 02:00:00:00:00:01", m.Value)
		}
	}
}

// Value is the address asked for, in the usual colon form, or "".
func (k MACKeys) Value() string {
	for _, m := range k {
		if m.Value != "" {
			return UnicastMAC(m.Value)
		}
	}
	return ""
}

// MAC is the address that a call asks for, in the usual colon form, or "": by
// runtimeConfig, else by CNI_ARGS, else by the configuration.
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

// MACArg is the MAC key of CNI_ARGS, in the usual colon form; "" without one.
func (a Args) MACArg() (string, error) {
	m := a.Get("MAC")
	if m == "" || UnicastMAC(m) != "" {
		return UnicastMAC(m), nil
	}
	return "", &EnvError{Name: "CNI_ARGS: MAC", Reason: fmt.Sprintf("%q is no Ethernet address of one interface: use the form 02:00:00:00:00:01", m)}
}
