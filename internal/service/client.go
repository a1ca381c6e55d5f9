package service

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// Ask sends a request to the daemon of a socket, and calls each with the data of each line of its answer. args and each may be nil. The error is an
// Error if the daemon refuses, and ErrAbsent if nobody answers such requests.
func Ask(ctx context.Context, path, name string, args any, each func(data []byte) error) error {
	c, err := dial(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // all was read, or is lost
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	err = send(c, name, args)
	if err == nil {
		err = receive(c, each)
	}
	if errors.Is(err, ErrAbsent) {
		return fmt.Errorf("%w for %q on %q", ErrAbsent, name, path)
	}
	if said := Error(""); err != nil && !errors.As(err, &said) {
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// Tell sends a request without waiting for its answer.
func Tell(ctx context.Context, path, name string) error {
	c, err := dial(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(send(c, name, nil), c.Close())
}

// Into returns a function for Ask that decodes an answer of one line.
func Into(v any) func([]byte) error {
	return func(data []byte) error { return coldjson.Unmarshal(data, v) }
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w on %q", ErrAbsent, path)
	}
	return c, err
}

func send(w io.Writer, name string, args any) error {
	line := `{"ask":"` + name + `"`
	if args != nil {
		b, err := coldjson.Marshal(args)
		if err != nil {
			return err
		}
		line += `,"args":` + string(b)
	}
	line += "}\n"
	if len(line) > MaxRequest {
		return fmt.Errorf("%w: %q has more than %d bytes", ErrTooLong, name, MaxRequest)
	}
	_, err := io.WriteString(w, line)
	return err
}

// errCut means that an answer has no last line.
var errCut = errors.New("the answer is cut short")

// receive reads an answer.
func receive(r io.Reader, each func(data []byte) error) error {
	in := bufio.NewScanner(io.LimitReader(r, MaxAnswer))
	in.Buffer(make([]byte, 0, 512), MaxAnswer)
	for in.Scan() {
		var l struct {
			End    bool            `json:"end"`
			Absent bool            `json:"absent"`
			Error  string          `json:"error"`
			Data   json.RawMessage `json:"data"`
		}
		if err := coldjson.Unmarshal(in.Bytes(), &l); err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		switch {
		case l.Absent:
			return ErrAbsent
		case l.Error != "":
			return Error(l.Error)
		}
		if l.Data != nil && each != nil {
			if err := each(l.Data); err != nil {
				return err
			}
		}
		if l.End {
			return nil
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	return errCut
}
