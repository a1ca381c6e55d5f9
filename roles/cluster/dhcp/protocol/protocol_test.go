package protocol

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
)

// TestStoppedDaemon: a call ends in time when the daemon accepts the connection and does
// not answer, because it was stopped.
func TestStoppedDaemon(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := Client{Socket: l.Addr().String()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := c.Release(ctx, &roles.Request{}); !errors.Is(err, roles.ErrTryAgain) {
		t.Errorf("release: %v", err)
	}
	if _, err := c.Collect(ctx, "lan", nil); !errors.Is(err, roles.ErrTryAgain) {
		t.Errorf("collect: %v", err)
	}
}
