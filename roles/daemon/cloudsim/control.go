package cloudsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// The control socket takes one line of JSON, {"args": ["break", "429"]}, answers
// with one, and ends the connection.
const (
	socketFile = "cloud-sim.sock"
	// controlTime bounds an exchange.
	controlTime = 10 * time.Second
	// maxOrder and maxAnswer bound what is read of one.
	maxOrder  = 1 << 20
	maxAnswer = 64 << 20
)

// errNoSim: nobody listens at the control socket.
var errNoSim = errors.New("no cloud-sim runs")

type order struct {
	Args []string `json:"args"`
}

type outcome struct {
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// control answers at a socket until ctx ends.
func (s *Sim) control(ctx context.Context, l *net.UnixListener) error {
	var answers sync.WaitGroup
	defer answers.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("control socket: %w", err)
		}
		answers.Go(func() {
			defer c.Close() //nolint:errcheck // what could be sent was
			_ = c.SetDeadline(time.Now().Add(controlTime))
			if err := json.NewEncoder(c).Encode(s.obey(c)); err != nil {
				s.log.Warn("control", "error", err)
			}
		})
	}
}

// obey does what is read.
func (s *Sim) obey(r io.Reader) outcome {
	var o order
	if err := json.NewDecoder(io.LimitReader(r, maxOrder)).Decode(&o); err != nil {
		return outcome{Error: "read the order: " + err.Error()}
	}
	out, err := s.Do(o.Args...)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	s.log.Info("control", "args", o.Args, "answer", out)
	return outcome{Answer: encode(out)}
}

// tell has the simulator at a socket run a command, and puts its answer into out.
func tell(ctx context.Context, path string, args []string, out any) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: nobody listens at %q: start one, or name its socket by --control", errNoSim, path)
	}
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // all was read, or is lost
	_ = c.SetDeadline(time.Now().Add(controlTime))
	if err := json.NewEncoder(c).Encode(order{args}); err != nil {
		return fmt.Errorf("tell cloud-sim: %w", err)
	}
	var o outcome
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&o); err != nil {
		return fmt.Errorf("read cloud-sim's answer: %w", err)
	}
	if o.Error != "" {
		return errors.New(o.Error)
	}
	return json.Unmarshal(o.Answer, out)
}

// controlPath is the socket's, by default.
func controlPath(h *roles.Host) string {
	return filepath.Join(filepath.Dir(h.Store.OverlayPath()), socketFile)
}

// verbs are the commands, for the command line.
func verbs() []roles.CommandVerb {
	all := []roles.CommandVerb{
		{Name: ownName, Help: "tell a running simulator of a cloud what to do; `cnibox cloud-sim -help` is about starting one"},
		{Name: ownName + " kinds", Help: "list what `cloud-sim break` can break", Run: func(context.Context, *roles.Host, map[string]string, []string) (any, error) {
			return listKinds(), nil
		}},
	}
	for _, c := range commands() {
		all = append(all, roles.CommandVerb{
			Name: ownName + " " + c.name, Help: c.help, Args: c.args,
			Flags: append([]roles.Flag{{Name: "control", Help: "path of the simulator's socket; else " + socketFile + " in the run directory"}}, c.flags...),
			Run: func(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
				return order{append([]string{c.name}, args...)}.send(ctx, h, flags, c)
			},
		})
	}
	return all
}

// send gives an order with its flags, and reads the command's kind of answer.
func (o order) send(ctx context.Context, h *roles.Host, flags map[string]string, c command) (any, error) {
	path := flags["control"]
	if path == "" {
		path = controlPath(h)
	}
	for _, f := range c.flags {
		if v := flags[f.Name]; v != "" {
			o.Args = append(o.Args, "--"+f.Name+"="+v)
		}
	}
	switch c.name {
	case "count":
		var counts Counts
		return &counts, tell(ctx, path, o.Args, &counts)
	case "show":
		var nics []store.CloudNIC
		return nics, tell(ctx, path, o.Args, &nics)
	}
	var text string
	err := tell(ctx, path, o.Args, &text)
	return text, err
}
