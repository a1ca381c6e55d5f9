package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// undoTimeout bounds the clean-up after a failed ADD. The clean-up continues even
// if the call itself was cancelled.
const undoTimeout = time.Minute

// call is one call of a plugin.
type call struct {
	p    *Process
	log  *slog.Logger
	role *roles.Role
	// name is the name under which the role was called; empty until it is known.
	name string
	// version is the CNI version of everything printed: roles.ResultVersion until the
	// configuration is read, then the configuration's if it is supported.
	version string
	req     *roles.Request
	// stdin is the input, and result the printed result of ADD.
	stdin, result []byte
	// printed means that writing a document was attempted, with or without success.
	printed bool
	// host is set when the node is open, and delegate is its Delegate.
	host     *roles.Host
	delegate *delegator
}

// call runs one verb, prints its result or its error object, and returns the exit
// code.
func (p *Process) call(ctx context.Context, role *roles.Role, name string, verb roles.Verb) int {
	c := &call{p: p, log: NewLogger(*p), role: role, name: name, version: roles.ResultVersion}
	t := newTraced(name, verb, nil)
	err := catchPanic(c.log, "call", func() error { return c.run(ctx, verb) })
	c.log.Debug("call is done", "role", c.name, "verb", string(verb), "took", time.Since(t.Time), "error", err)
	if err == nil {
		c.finish(ctx, t, nil)
		return exitOK
	}
	failure := newErrorObject(c.version, c.name, verb, err)
	c.finish(ctx, t, &failure)
	if c.printed {
		// With two documents, standard output is not valid JSON.
		c.log.Error("call failed after its result was printed", "error", err)
		return exitFailed
	}
	doc, merr := marshal(failure)
	if merr == nil {
		merr = c.print(doc)
	}
	if merr != nil {
		c.log.Error("the error could not be printed", "error", err, "cause", merr)
	}
	return exitFailed
}

// finish counts the call for metrics and adds it to the trace. A call that did not need the node is not
// counted. It is traced, because then its environment or configuration has faults.
func (c *call) finish(ctx context.Context, t *traced, failure *errorObject) {
	h := c.host
	if h != nil {
		var code uint
		if failure != nil {
			code = failure.Code
		}
		if err := h.Store.CountCall(ctx, c.name, t.Verb, uint16(min(code, math.MaxUint16)), time.Since(t.Time)); err != nil {
			c.log.Debug("the call is not counted", "error", err)
		}
	}
	if !isTraced(roles.Verb(t.Verb)) {
		return
	}
	if h == nil {
		opened, done, err := c.p.OpenHost(ctx, c.name, c.log)
		if err != nil {
			c.log.Debug("the call is not traced", "error", err)
			return
		}
		defer done()
		h = opened
	}
	network := ""
	if c.req != nil {
		network = c.req.Network
	}
	t.Role, t.Caller = c.name, callerName()
	t.finish(h, c.log, c.p.Env, network, c.stdin, c.result, failure)
}

// run validates the environment, then the configuration, then calls the role. The
// error codes of the spec suggest this order.
func (c *call) run(ctx context.Context, verb roles.Verb) error {
	var err error
	c.req, err = newRequest(verb, c.p.Env, c.role, c.p.Table)
	if err != nil {
		return err
	}
	raw, err := readConf(verb, c.p.Stdin)
	if err != nil {
		return err
	}
	c.stdin = raw
	if verb == roles.Version {
		return c.versions(raw)
	}
	if err := c.configure(raw); err != nil {
		return err
	}
	c.log.Debug("call", "role", c.name, "verb", string(verb), "network", c.req.Network, "version", c.req.CNIVersion,
		"container", c.req.ContainerID, "ifname", c.req.IfName, "netns", c.req.Netns, "args", c.req.Args.String())
	if err := guardNetns(c.req); err != nil {
		return err
	}
	handler, err := newHandler(c.log, c.role, c.name, c.req, raw)
	if err != nil {
		return err
	}
	host, done, err := c.p.OpenHost(ctx, c.name, tagged(c.log, c.name))
	if err != nil {
		return err
	}
	defer done()
	c.host = host
	c.delegate = newDelegator(*c.p, host, c.log)
	host.Delegate = c.delegate
	if verb == roles.Add {
		return c.add(ctx, handler, host)
	}
	return catchPanic(c.log, c.name, func() error {
		_, err := serve(ctx, handler, host, c.req)
		return err
	})
}

// versions answers VERSION. Its cniVersion is the request's.
func (c *call) versions(raw []byte) error {
	h := &header{CNIVersion: roles.ResultVersion}
	if len(raw) > 0 {
		var err error
		if h, err = decodeHeader(raw); err != nil {
			return err
		}
	}
	doc, err := marshal(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{h.CNIVersion, result.Versions()})
	if err != nil {
		return err
	}
	return c.print(doc)
}

// configure completes the request from the configuration in raw. It looks the role
// up by the configuration's type if neither the program's name nor an argument
// selected one.
func (c *call) configure(raw []byte) error {
	h, err := decodeHeader(raw)
	if err != nil {
		return err
	}
	if slices.Contains(result.Versions(), h.CNIVersion) {
		c.version = h.CNIVersion
	}
	if err := h.check(c.req.Verb); err != nil {
		return err
	}
	if c.role == nil {
		role, ok := c.p.Table.Lookup(h.Type)
		if !ok {
			return &roles.ConfError{Path: "type", Reason: fmt.Sprintf("%q is not a role of this program", shortened(h.Type))}
		}
		c.role, c.name = role, h.Type
	}
	c.req.Network, c.req.CNIVersion, c.req.Conf = h.Name, h.CNIVersion, raw
	if c.req.Verb == roles.GC {
		c.req.Valid, err = h.valid()
		return err
	}
	c.req.PrevResult, err = result.DecodePrev(h.CNIVersion, h.PrevResult)
	if err != nil && c.req.Verb == roles.Del {
		// The runtime's copy of the result is damaged, but the attachment still
		// exists. DEL does not need the result.
		c.log.Warn("prevResult is ignored", "error", err)
		return nil
	}
	return err
}

// add runs ADD and prints its result. A role whose ADD returns an error has already
// cleaned up. After a panic, or when the result cannot be printed, add calls DEL.
func (c *call) add(ctx context.Context, handler roles.Handler, host *roles.Host) error {
	var res *roles.Result
	c.req.Recorded = new(bool)
	err := catchPanic(c.log, c.name, func() error {
		if a, ok := handler.(roles.Addressless); ok && a.Addressless() && !result.AtLeast(c.version, "0.3.0") {
			return result.NoAddressError(c.version)
		}
		var err error
		res, err = serve(ctx, handler, host, cloneRequest(c.req))
		return err
	})
	if err != nil && !errors.Is(err, roles.ErrPanic) {
		return err
	}
	if err == nil {
		err = catchPanic(c.log, c.name, func() error { return c.printResult(res) })
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return errors.Join(err, catchPanic(c.log, c.name, func() error {
		req := cloneRequest(c.req)
		req.Verb = roles.Del
		_, err := serve(ctx, handler, host, req)
		return err
	}))
}

// printResult prints ADD's result. If a role returns that of a third-party plugin, as a fused
// list does, it prints the plugin's document.
func (c *call) printResult(r *roles.Result) error {
	doc := c.delegate.document(r, c.version)
	if doc == nil {
		var err error
		if doc, err = render(r, c.version); err != nil {
			return err
		}
	}
	c.result = doc
	return c.print(doc)
}

// print writes a document with a single Write.
func (c *call) print(doc []byte) error {
	c.printed = true
	n, err := c.p.Stdout.Write(doc)
	if err != nil {
		return fmt.Errorf("write standard output: %w: %w", ErrIO, err)
	}
	if n != len(doc) {
		return fmt.Errorf("write standard output: %w: %d of %d bytes", ErrIO, n, len(doc))
	}
	return nil
}

// newHandler creates a role's handler. An error of role.New that has no code of its
// own becomes roles.ErrConf. For DEL, and a partial GC, if the configuration has faults and the role
// has an Undo, newHandler returns the handler of Undo, which removes what the records list.
func newHandler(log *slog.Logger, role *roles.Role, name string, req *roles.Request, conf []byte) (handler roles.Handler, err error) {
	if role.New == nil {
		return nil, fmt.Errorf("%w: %q is a daemon and does not answer CNI calls", roles.ErrNoPlugin, name)
	}
	err = catchPanic(log, name, func() error {
		var err error
		handler, err = role.New(conf)
		return err
	})
	if err != nil && codeOf(err) == codeGeneral {
		err = fmt.Errorf("%w: %w", roles.ErrConf, err)
	}
	undoes := req.Verb == roles.Del || req.Partial
	if !undoes || role.Undo == nil || !errors.Is(err, roles.ErrConf) {
		return handler, err
	}
	report := log.Warn
	if req.Partial {
		report = log.Debug
	}
	report("the configuration has faults; "+string(req.Verb)+" removes what the records list", "role", name, "error", err)
	undoErr := catchPanic(log, name, func() error {
		var err error
		handler, err = role.Undo(conf)
		return err
	})
	if undoErr != nil {
		return nil, err
	}
	return handler, nil
}

// serve calls the handler for the request's verb. A verb that the handler does not
// implement succeeds.
func serve(ctx context.Context, handler roles.Handler, host *roles.Host, req *roles.Request) (*roles.Result, error) {
	switch req.Verb {
	case roles.Add:
		r, err := handler.Add(ctx, host, req)
		if err == nil && r == nil {
			err = fmt.Errorf("%w: ADD returned no result", roles.ErrPanic)
		}
		return r, err
	case roles.Del:
		return nil, handler.Del(ctx, host, req)
	case roles.Check:
		if h, ok := handler.(roles.Checker); ok {
			return nil, h.Check(ctx, host, req)
		}
	case roles.GC:
		// A missing list does not mean that the runtime has no attachments.
		if h, ok := handler.(roles.Collector); ok && req.Valid != nil {
			return nil, h.GC(ctx, host, req)
		}
	case roles.Status:
		if h, ok := handler.(roles.Statuser); ok {
			return nil, h.Status(ctx, host, req)
		}
	case roles.Version:
	}
	return nil, nil
}

// catchPanic calls fn and turns a panic into an error that wraps roles.ErrPanic. The
// stack goes to the log only.
func catchPanic(log *slog.Logger, name string, fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", "role", name, "value", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v: please report it with the log", roles.ErrPanic, v)
		}
	}()
	return fn()
}
