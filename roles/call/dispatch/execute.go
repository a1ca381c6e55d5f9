package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

const (
	// stopTimeout is the time between SIGTERM and SIGKILL for a plugin. After the
	// plugin's end, a child of the plugin may hold its outputs open that long.
	stopTimeout = 5 * time.Second
	// maxOutput bounds a plugin's standard output, in bytes.
	maxOutput = 4 << 20
	// maxErrorText bounds the standard error, in bytes, that is quoted when a program
	// fails without an error object.
	maxErrorText = 4 << 10
)

// errOutput stops a plugin that prints without end.
var errOutput = fmt.Errorf("%w: it printed more than %d bytes", roles.ErrDecode, maxOutput)

// executed is a plugin that is not this program: a file to execute.
type executed struct {
	typ, file string
	stderr    io.Writer
	log       *slog.Logger
	// printed is the document of the result that call returned.
	printed []byte
}

// call executes the plugin with the request's environment and configuration (CNI spec
// 1.1.0, section 4). The plugin's standard error goes to that of this process.
func (e *executed) call(ctx context.Context, req *roles.Request) (*roles.Result, error) {
	ctx, stop := WithSignals(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &boundedBuffer{left: maxOutput}
	if req.Verb == roles.Add {
		out.full = func() { cancel(errOutput) }
	}
	errorText := &boundedBuffer{left: maxErrorText}
	e.log.Debug("execute plugin", "file", e.file, "verb", string(req.Verb))
	err := runPlugin(ctx, e.file, delegateEnv(req), req.Conf, out, io.MultiWriter(e.stderr, errorText))
	if out.cut && req.Verb == roles.Add {
		return nil, e.invalid(req.Verb, errOutput)
	}
	if err != nil {
		return nil, e.failure(ctx, req.Verb, err, out, errorText.buf.String())
	}
	if req.Verb != roles.Add {
		return nil, nil
	}
	e.printed = bytes.TrimSpace(out.buf.Bytes())
	res, err := result.Decode(req.CNIVersion, e.printed)
	if err != nil {
		return nil, e.invalid(req.Verb, err)
	}
	return res, nil
}

// runPlugin executes a plugin's file to its end. A child of the plugin that holds the outputs open is not an error.
func runPlugin(ctx context.Context, file string, env []string, stdin []byte, out, errorText io.Writer) error {
	cmd := exec.CommandContext(ctx, file)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, errorText
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (e *executed) invalid(verb roles.Verb, err error) error {
	return &DelegateError{Type: e.typ, File: e.file, Verb: verb, Err: err}
}

// failure returns the error of a plugin that failed. It has the plugin's error object
// if there is one, else the plugin's standard error, else only its exit status.
func (e *executed) failure(ctx context.Context, verb roles.Verb, err error, out *boundedBuffer, errorText string) error {
	d := &DelegateError{Type: e.typ, File: e.file, Verb: verb, Err: err}
	if ctx.Err() != nil {
		d.Err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		return d
	}
	if errors.Is(err, syscall.ETXTBSY) {
		d.Err = fmt.Errorf("%w: the file is being written: %w", roles.ErrTryAgain, err)
		return d
	}
	var o errorObject
	if json.Unmarshal(out.buf.Bytes(), &o) == nil && (o.Msg != "" || o.Code != 0) {
		d.Code, d.Msg, d.Details = o.Code, o.Msg, o.Details
		return d
	}
	if errorText = strings.TrimSpace(errorText); errorText != "" {
		d.Err = fmt.Errorf("%w: %s", err, errorText)
	}
	return d
}

// delegateEnv returns the request's environment with the CNI variables set from the
// request's fields.
func delegateEnv(req *roles.Request) []string {
	set := [][2]string{
		{envCommand, string(req.Verb)},
		{envContainerID, req.ContainerID},
		{envNetns, req.Netns},
		{envIfName, req.IfName},
		{envArgs, req.Args.String()},
		{envPath, strings.Join(req.Path, ":")},
	}
	env := slices.DeleteFunc(slices.Clone(req.Env), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(set, func(s [2]string) bool { return s[0] == k })
	})
	for _, s := range set {
		if s[1] != "" {
			env = append(env, s[0]+"="+s[1])
		}
	}
	return env
}

// boundedBuffer is a buffer that keeps the first left bytes written to it and drops the
// rest.
type boundedBuffer struct {
	buf  bytes.Buffer
	left int    // how many more bytes it keeps
	cut  bool   // bytes were dropped
	full func() // called when bytes are dropped, unless nil
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.buf.Write(p[:n])
	b.left -= n
	b.cut = b.cut || n < len(p)
	if b.cut && b.full != nil {
		b.full()
	}
	return len(p), nil
}
