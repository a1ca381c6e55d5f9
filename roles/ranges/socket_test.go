package ranges

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
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

// TestAccept: a failed accept does not end the service, and the longest error arrives.
func TestAccept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	requests, done, ended := make(chan *request), make(chan struct{}), make(chan struct{})
	go func() { accept(&failing{Listener: l}, requests, done); close(ended) }()
	text := strings.Repeat("<", maxError)
	go func() {
		select {
		case r := <-requests:
			r.reply(errors.New(text + "cut"))
		case <-done:
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), askTime)
	defer cancel()
	a, err := ask(ctx, path, "net")
	if err != nil || a.Error != text {
		t.Errorf("%d characters, %v", len(a.Error), err)
	}
	close(done)
	_ = l.Close()
	<-ended
}
