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
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// Ask sends a request to the daemon of a socket, and calls each with the data of each line of its answer. args and each may be nil. The error is an
// Error if the daemon refuses, and ErrAbsent if nobody answers such requests.
func Ask(ctx context.Context, path, name string, args any, each func(data []byte) error) error {
	line, err := request(name, args)
	if err != nil {
		return err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return unreached(path, err)
	}
	defer c.Close() //nolint:errcheck // all was read, or is lost
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	_, err = c.Write(line)
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

// Tell sends a request without waiting for its answer. It does without package net, whose poller costs a plugin that only tells something more than
// the request.
func Tell(path, name string) error {
	line, err := request(name, nil)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd) //nolint:errcheck // it was written
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return unreached(path, os.NewSyscallError("connect", err))
	}
	_, err = unix.Write(fd, line)
	return os.NewSyscallError("write", err)
}

// Into returns a function for Ask that decodes an answer of one line.
func Into(v any) func([]byte) error {
	return func(data []byte) error { return coldjson.Unmarshal(data, v) }
}

// unreached returns the error of a connection that was not made.
func unreached(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w on %q", ErrAbsent, path)
	}
	return err
}

// request returns the line of a request.
func request(name string, args any) ([]byte, error) {
	line := `{"ask":"` + name + `"`
	if args != nil {
		b, err := coldjson.Marshal(args)
		if err != nil {
			return nil, err
		}
		line += `,"args":` + string(b)
	}
	line += "}\n"
	if len(line) > MaxRequest {
		return nil, fmt.Errorf("%w: %q has more than %d bytes", ErrTooLong, name, MaxRequest)
	}
	return []byte(line), nil
}

// errCut means that an answer has no last line.
var errCut = errors.New("the answer is cut short")

// receive reads an answer. A line with nothing of a frame is of another program, and so is an answer without the data that each wants: they
// must not look like a success.
func receive(r io.Reader, each func(data []byte) error) error {
	in := bufio.NewScanner(io.LimitReader(r, MaxAnswer))
	in.Buffer(make([]byte, 0, 512), MaxAnswer)
	for empty := each != nil; in.Scan(); {
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
		case l.Data == nil && !l.End:
			return errCut
		}
		if l.Data != nil && each != nil {
			empty = false
			if err := each(l.Data); err != nil {
				return err
			}
		}
		if l.End && empty {
			return errCut
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
