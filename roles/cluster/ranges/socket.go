package ranges

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
)

// socketFile is the agent's socket for the role range, in the node's run directory. A client that writes a
// network's name gets an answer when the agent has tried to lease a block for it. One that writes a Reserve as JSON
// gets an answer when this node holds the reservation. A client that closes the connection tells the agent that addresses
// were given out, or released.
const socketFile = "ranges.sock"

// askTime bounds the wait of an ADD for the agent.
const askTime = 10 * time.Second

// everyNetwork is in place of a network's name, of which no name begins with "*". The agent reads all pages again, and
// the answer is also an error if another program gives addresses of a range.
const everyNetwork = "*"

// Bounds of a request and an answer in bytes, and of an error in an answer in characters. JSON has at most 6 bytes
// for one.
const (
	maxRequest = 256 << 10
	maxError   = 2000
	maxAnswer  = 6*maxError + 100
)

// Socket returns the path of the agent's socket for the role range.
func Socket(h *roles.Host) string { return filepath.Join(h.Store.RunDir(), socketFile) }

// RemoveSocket removes the socket and its lock file from a node, unless an agent with -ranges-only uses them.
func RemoveSocket(h *roles.Host) error {
	path := Socket(h)
	unlock, err := process.Lock(path + ".lock")
	if err != nil {
		return nil //nolint:nilerr // another agent serves the socket
	}
	defer unlock()
	err = os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(path+".lock"))
}

// answer is the agent's answer to a request.
type answer struct {
	Error string `json:"error,omitempty"`
}

// Ask stores what a network demands and waits until the agent has tried to lease blocks. Errors are
// roles.ErrTryAgain.
func Ask(ctx context.Context, h *roles.Host, demands []store.RangeDemand) error {
	err := h.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range demands {
			if err := tx.PutRangeDemand(&demands[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	got, err := ask(ctx, Socket(h), demands[0].Network)
	if err != nil {
		return fmt.Errorf("%w: no block of the range is leased, and the agent does not answer: start 'cnibox agent' on this node: %w", roles.ErrTryAgain, err)
	}
	if got.Error != "" {
		return fmt.Errorf("%w: the agent has no block of the range: %s", roles.ErrTryAgain, got.Error)
	}
	return nil
}

// Refresh makes the agent read all pages, take over the addresses of this node's containers from whereabouts, and
// return the blocks that whereabouts gets again.
func Refresh(ctx context.Context, h *roles.Host) error { return call(ctx, h, everyNetwork) }

// AskReservation waits until this node holds a reservation, whose addresses are then in node.db, or until the agent has
// freed it. Errors are roles.ErrTryAgain, unless it was to be freed.
func AskReservation(ctx context.Context, h *roles.Host, d *Reserve) error {
	line, err := json.Marshal(d)
	if err == nil && len(line) >= maxRequest {
		err = fmt.Errorf("the ranges of the network %q have too many parts: exclude fewer addresses", d.Network)
	}
	if err != nil {
		return err
	}
	err = call(ctx, h, string(line))
	if err != nil && !d.Free {
		err = fmt.Errorf("%w: reserve addresses: %w", roles.ErrTryAgain, err)
	}
	return err
}

// call sends a line to the agent and waits for its answer, which may be an error.
func call(ctx context.Context, h *roles.Host, line string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	got, err := ask(ctx, Socket(h), line)
	if err != nil {
		return fmt.Errorf("the agent does not answer: start 'cnibox agent' on this node: %w", err)
	}
	if got.Error != "" {
		return errors.New(got.Error)
	}
	return nil
}

func ask(ctx context.Context, path, line string) (a answer, err error) {
	err = process.Ask(ctx, path, func(c net.Conn) error {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return err
		}
		return json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&a)
	})
	return a, err
}

// Notify informs the agent that addresses were given out, so that it leases the next block before it is
// needed, or released. It does not wait.
func Notify(h *roles.Host) error {
	c, err := net.DialTimeout("unix", Socket(h), time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// request is a client of the agent that waits for a block of a network, or for a reservation, or for nothing.
type request struct {
	network string
	reserve *Reserve
	conn    net.Conn
}

func (r *request) waits() bool { return r.network != "" || r.reserve != nil }

// reply answers and ends a request.
func (r *request) reply(err error) {
	var a answer
	if err != nil {
		a.Error = strings.ToValidUTF8(fmt.Sprintf("%.*s", maxError, err), "")
	}
	if r.waits() {
		_ = json.NewEncoder(r.conn).Encode(a) // the client may have ended
	}
	_ = r.conn.Close()
}

// accept returns a function that sends a client's request to the keeper, unless done is closed.
func accept(to chan<- *request, done <-chan struct{}) func(net.Conn) {
	return func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(askTime + time.Second))
		go func() {
			line, _ := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadString('\n')
			r := &request{network: strings.TrimSuffix(line, "\n"), conn: c}
			if strings.HasPrefix(line, "{") { // no network has such a name
				r.network, r.reserve = "", new(Reserve)
				if json.Unmarshal([]byte(line), r.reserve) != nil {
					_ = c.Close()
					return
				}
			}
			select {
			case to <- r:
			case <-done:
				_ = c.Close()
			}
		}()
	}
}
