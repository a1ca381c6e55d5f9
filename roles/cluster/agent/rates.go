package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cnibox/cnibox/netops/rates"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// ratesSocket is beside the socket of the status.
func (s *settings) ratesSocket() string {
	return filepath.Join(filepath.Dir(s.socket), rates.SocketFile)
}

// removeLocks removes the locks of the agent's sockets, which stay when it ends.
func (s *settings) removeLocks() error {
	var errs []error
	for _, socket := range []string{s.socket, s.ratesSocket()} {
		if err := os.Remove(socket + ".lock"); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// keepRates keeps the rates of the node's links for the page of 'cnibox ui', until the context ends. The socket beside that of the status
// answers with them.
func (a *agent) keepRates(ctx context.Context) {
	n := a.host.Net.Clone()
	defer n.Close() //nolint:errcheck // it only reads
	history := rates.New(rates.Span, nil)
	s := process.NewSocket(a.set.ratesSocket())
	if err := s.Open(); err != nil {
		a.log.Warn("the rates of the last hour are not kept", "error", err)
		return
	}
	defer s.Close()
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { history.Follow(ctx, rates.Count(n)) })
	s.Answer(ctx, a.log, func(_ context.Context, w io.Writer) error { return json.NewEncoder(w).Encode(history.Links()) })
}
