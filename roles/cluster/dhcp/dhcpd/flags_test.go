package dhcpd

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// TestFlags: -help lists every flag with its default, and an error names -help.
func TestFlags(t *testing.T) {
	_, err := parseFlags([]string{"-help"})
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(err.Error(), "\n  -socketpath PATH: path of the socket to listen on (/run/cni/dhcp.sock)\n") {
		t.Errorf("-help: %v", err)
	}
	_, err = parseFlags([]string{"-socket", "/run/x.sock"})
	if !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), "-socket: 'cnibox dhcp daemon -help' lists") {
		t.Errorf("-socket: %v", err)
	}
	s, err := parseFlags([]string{"-socketpath", "/run/x.sock", "-broadcast"})
	if err != nil || s.Socket != "/run/x.sock" || !s.Broadcast {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = parseFlags([]string{"-socketpath", "x.sock", "-timeout", "0s"})
	if !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), `-socketpath: "x.sock" is not an absolute path`) || !strings.Contains(err.Error(), "-timeout: 0s is not positive") {
		t.Errorf("wrong values: %v", err)
	}
}
