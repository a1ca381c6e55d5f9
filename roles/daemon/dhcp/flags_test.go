package dhcp

import (
	"strings"
	"testing"
)

// TestFlags: who asks for help, or errs, is told every flag with its default.
func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-help"}, {"-socket", "/run/x.sock"}} {
		_, err := parseFlags(args)
		if err == nil || !strings.Contains(err.Error(), "\n  -socketpath PATH: path of the socket to listen on (/run/cni/dhcp.sock)\n") {
			t.Errorf("%q: %v", args, err)
		}
	}
	s, err := parseFlags([]string{"-socketpath", "/run/x.sock", "-broadcast"})
	if err != nil || s.socket != "/run/x.sock" || !s.broadcast {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = parseFlags([]string{"-socketpath", "x.sock", "-timeout", "0s"})
	if err == nil || !strings.Contains(err.Error(), `-socketpath: "x.sock" is no absolute path`) || !strings.Contains(err.Error(), "-timeout: 0s is no time to wait") {
		t.Errorf("wrong values: %v", err)
	}
}
