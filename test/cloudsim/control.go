package cloudsim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/cnibox/cnibox/roles"
)

// The control socket reads one line of JSON, {"args": ["break", "429"]}, answers with one line, and closes the connection.
const (
	controlSocket = "/run/cloud-sim.sock"
	// controlTime bounds one order and its answer.
	controlTime = 10 * time.Second
	// maxOrder and maxAnswer are in bytes.
	maxOrder  = 1 << 20
	maxAnswer = 64 << 20
)

// errNoSim means that no process listens on the control socket.
var errNoSim = errors.New("no cloud-sim listens")

type order struct {
	Args []string `json:"args"`
}

type outcome struct {
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// control answers orders on a socket until ctx ends.
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
			defer c.Close() //nolint:errcheck // the answer was sent, or the client closed the connection
			_ = c.SetDeadline(time.Now().Add(controlTime))
			if err := json.NewEncoder(c).Encode(s.execute(c)); err != nil {
				s.log.Warn("control", "error", err)
			}
		})
	}
}

// execute reads an order and runs it.
func (s *Sim) execute(r io.Reader) outcome {
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

// send sends one order to the simulator that listens at path, and returns its answer.
func send(ctx context.Context, path string, args []string) (json.RawMessage, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w at %q: start one, or name its socket with --control", errNoSim, path)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // the answer was read completely, or is lost
	_ = c.SetDeadline(time.Now().Add(controlTime))
	if err := json.NewEncoder(c).Encode(order{args}); err != nil {
		return nil, fmt.Errorf("send order: %w", err)
	}
	var o outcome
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&o); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if o.Error != "" {
		return nil, errors.New(o.Error)
	}
	return o.Answer, nil
}

// Command is the program: it starts a simulator, or sends an order to a running one when the first argument names an order.
// The answer goes to out.
func Command(ctx context.Context, args []string, out, logTo io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "kinds":
		return printKinds(out)
	case len(args) == 0 || !isOrder(args[0]):
		return serve(ctx, args, logTo)
	}
	path, args, err := cutControl(args)
	if err == nil {
		_, _, _, err = parseCommand(args)
	}
	if err != nil {
		return roles.Usagef("%w", err)
	}
	answer, err := send(ctx, path, args)
	if err != nil {
		return err
	}
	return printAnswer(out, answer)
}

func isOrder(name string) bool {
	return slices.ContainsFunc(commands(), func(c command) bool { return c.name == name })
}

// cutControl takes the flag --control out of the arguments: it is for the sender, all others are for the simulator.
func cutControl(args []string) (path string, rest []string, err error) {
	path = controlSocket
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		if name != "--control" && name != "-control" {
			rest = append(rest, args[i])
			continue
		}
		if !given {
			i++
			if i == len(args) {
				return "", nil, errors.New("--control has no value")
			}
			value = args[i]
		}
		path = value
	}
	return path, rest, nil
}

// printAnswer prints a text as it is, and everything else as indented JSON.
func printAnswer(w io.Writer, answer json.RawMessage) error {
	var text string
	if json.Unmarshal(answer, &text) == nil {
		_, err := fmt.Fprintln(w, text)
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, answer, "", "  "); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func printKinds(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KIND\tWHAT IS WRONG\n400 to 599\tthat HTTP status")
	for _, k := range kinds() {
		fmt.Fprintf(t, "%s\t%s\n", k.name, k.help)
	}
	return t.Flush()
}
