package rtnl

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// CheckName applies the kernel's rules for interface names (dev_valid_name). It
// also refuses "%", because the kernel treats it as a name pattern.
func CheckName(name string) error {
	bad := name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".."
	for i := 0; i < len(name) && !bad; i++ {
		switch c := name[i]; c {
		case '/', ':', '%', 0, ' ', '\t', '\n', '\v', '\f', '\r', 0xa0:
			bad = true
		}
	}
	if bad {
		return fmt.Errorf("interface name %q: %w", name, nlconn.ErrInvalid)
	}
	return nil
}

// CheckMAC validates a MAC. An empty text is valid: the kernel then chooses the
// MAC.
func CheckMAC(mac string) error {
	if mac == "" {
		return nil
	}
	if a, err := net.ParseMAC(mac); err != nil || len(a) != 6 {
		return fmt.Errorf("MAC %q: %w", mac, nlconn.ErrInvalid)
	}
	return nil
}

// CheckMTU validates an MTU. 0 means that no MTU is set.
func CheckMTU(mtu int) error { return CheckRange("mtu", mtu, 0, 1<<31-1) }

// CheckRange returns an error if value is not between least and most.
func CheckRange(what string, value, least, most int) error {
	if value < least || value > most {
		return fmt.Errorf("%s %d is not in %d to %d: %w", what, value, least, most, nlconn.ErrInvalid)
	}
	return nil
}

// SameMAC reports whether a MAC in text form equals the MAC of a link.
func SameMAC(text string, have net.HardwareAddr) bool {
	want, err := net.ParseMAC(text)
	return err == nil && want.String() == have.String()
}
