package process

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// failing is a listener whose first Accept fails.
type failing struct {
	net.Listener
	failed bool
}

func (f *failing) Accept() (net.Conn, error) {
	if !f.failed {
		f.failed = true
		return nil, unix.EMFILE
	}
	return f.Listener.Accept()
}

// TestAccept: a failed accept does not end the service, and a closed listener does.
func TestAccept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test ends
	served := 0
	Accept(&failing{Listener: l}, func(c net.Conn) { served++; _ = c.Close(); _ = l.Close() })
	if served != 1 {
		t.Errorf("%d clients served", served)
	}
}
