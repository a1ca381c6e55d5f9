package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/result"
)

// delegateTimeout is the longest that a delegate may take: DHCP servers are
// slow, runtimes give up after a few minutes.
const delegateTimeout = 2 * time.Minute

// delegator calls plugins for one role.
type delegator struct {
	table      roles.Table
	executable string
	stderr     io.Writer
	host       *roles.Host
	// asRuntime has no DEL follow a failed ADD: it may be of what an earlier call
	// attached, and a person decides.
	asRuntime bool
	// callers are the roles of this program that are at work, outermost first.
	callers []string
	// log has no role's tag.
	log *slog.Logger
}

// NewDelegator returns what Host.Delegate is for a host: plugins are found on
// the request's CNI_PATH and called in process when the file is p.Executable
// itself, else executed. What is called in process gets its own copy of the
// request, a host of its own name, a deadline, and may panic. A host without a role is the
// command line's, which calls plugins as a runtime does.
func NewDelegator(p Process, h *roles.Host, log *slog.Logger) roles.Delegator {
	return &delegator{table: p.Table, executable: p.Executable, stderr: p.Stderr, host: h, asRuntime: h.Role == "", callers: []string{h.Role}, log: log}
}

// plugin is one delegate: a role of ours or a file to execute.
type plugin interface {
	// call runs the request's verb; the result is nil but for ADD.
	call(ctx context.Context, req *roles.Request) (*roles.Result, error)
}

// Add runs ADD; when that fails it runs DEL, as the spec demands of a plugin that delegates. Where that fails too
// the error has a roles.UndoError.
func (d *delegator) Add(ctx context.Context, typ string, req *roles.Request) (*roles.Result, error) {
	res, err := d.call(ctx, typ, roles.Add, req)
	if err == nil || d.asRuntime || nothingDone(err) {
		return res, err
	}
	if _, undo := d.call(context.WithoutCancel(ctx), typ, roles.Del, req); undo != nil {
		err = errors.Join(err, &roles.UndoError{Err: undo})
	}
	return nil, err
}

// nothingDone tells that a failed ADD is sure to have changed nothing. What
// was attached before is another call's: DEL would take it away.
func nothingDone(err error) bool {
	var executed *DelegateError
	return !errors.As(err, &executed) &&
		(errors.Is(err, roles.ErrNoPlugin) || errors.Is(err, roles.ErrConf) || errors.Is(err, roles.ErrAttached))
}

func (d *delegator) Del(ctx context.Context, typ string, req *roles.Request) error {
	_, err := d.call(ctx, typ, roles.Del, req)
	return err
}

func (d *delegator) Check(ctx context.Context, typ string, req *roles.Request) error {
	_, err := d.call(ctx, typ, roles.Check, req)
	return err
}

func (d *delegator) GC(ctx context.Context, typ string, req *roles.Request) error {
	_, err := d.call(ctx, typ, roles.GC, req)
	return err
}

func (d *delegator) Status(ctx context.Context, typ string, req *roles.Request) error {
	_, err := d.call(ctx, typ, roles.Status, req)
	return err
}

// Clone shares all but the connection to the kernel.
func (d *delegator) Clone() (roles.Delegator, func()) {
	h, sub := *d.host, *d
	h.Net = d.host.Net.Apart()
	sub.host = &h
	return &sub, func() {
		if err := h.Net.Close(); err != nil {
			d.log.Warn("close netlink", "error", err)
		}
	}
}

// OverLink looks the type up in the table.
func (d *delegator) OverLink(typ string) bool {
	role, ok := d.table.Lookup(typ)
	return ok && role.OverLink
}

// Find looks the type up as a call would.
func (d *delegator) Find(typ string, req *roles.Request) error {
	_, err := d.find(typ, req.Path)
	return err
}

// InProcess looks the type up as a call would.
func (d *delegator) InProcess(typ string, req *roles.Request) bool {
	p, err := d.find(typ, req.Path)
	_, ours := p.(*local)
	return err == nil && ours
}

// Plan asks a Planner of ours.
func (d *delegator) Plan(ctx context.Context, typ string, req *roles.Request) (*roles.Plan, error) {
	role, ok := d.table.Lookup(typ)
	if !ok {
		return nil, fmt.Errorf("%w: %q is not a role of this program", roles.ErrUnplanned, typ)
	}
	l := d.local(typ, role)
	var plan *roles.Plan
	err := l.with(req, func(h roles.Handler, req *roles.Request) error {
		p, ok := h.(roles.Planner)
		if !ok {
			return fmt.Errorf("%w: the role cannot tell", roles.ErrUnplanned)
		}
		var err error
		plan, err = p.Plan(ctx, l.host, req)
		return err
	})
	return plan, err
}

// Preview asks a Previewer of ours, whatever file is installed under its name:
// there may be none yet, or a copy of this program, and another program's of
// the same type answers from the same configuration. From a type that is not
// ours, and from one that cannot tell, it expects the placeholder.
func (d *delegator) Preview(ctx context.Context, typ string, req *roles.Request) (*roles.Result, error) {
	role, ok := d.table.Lookup(typ)
	if !ok {
		if _, err := d.find(typ, req.Path); err != nil {
			return nil, err
		}
		return placeholder(), nil
	}
	l := d.local(typ, role)
	var res *roles.Result
	err := l.with(req, func(h roles.Handler, req *roles.Request) error {
		pv, ok := h.(roles.Previewer)
		if !ok {
			res = placeholder()
			return nil
		}
		var err error
		res, err = pv.Preview(ctx, l.host, req)
		if errors.Is(err, roles.ErrUnplanned) {
			res, err = placeholder(), nil
		}
		return err
	})
	return res, err
}

// placeholder is an address that documentation is made of (RFC 5737).
func placeholder() *roles.Result {
	return &roles.Result{
		CNIVersion: roles.ResultVersion,
		IPs: []*types100.IPConfig{{
			Address: net.IPNet{IP: net.IPv4(192, 0, 2, 2).To4(), Mask: net.CIDRMask(24, 32)},
			Gateway: net.IPv4(192, 0, 2, 1).To4(),
		}},
	}
}

// call finds a plugin and runs one verb of it under a deadline.
func (d *delegator) call(ctx context.Context, typ string, verb roles.Verb, req *roles.Request) (*roles.Result, error) {
	if err := checkVerbVersion(verb, req.CNIVersion); err != nil {
		return nil, fmt.Errorf("%s: %w", typ, err)
	}
	p, err := d.find(typ, req.Path)
	if err != nil {
		return nil, err
	}
	as := *req
	as.Verb = verb
	ctx, cancel := context.WithTimeout(ctx, delegateTimeout)
	defer cancel()
	return p.call(ctx, &as)
}

// find looks a type up as libcni does: the first regular file of that name on
// CNI_PATH, links followed.
func (d *delegator) find(typ string, path []string) (plugin, error) {
	if typ == "" || strings.ContainsRune(typ, filepath.Separator) {
		return nil, fmt.Errorf("%w: %q is no plugin type", roles.ErrNoPlugin, shortened(typ))
	}
	for _, dir := range path {
		file := filepath.Join(dir, typ)
		st, err := os.Stat(file)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		own, err := os.Stat(d.executable)
		if err != nil || !os.SameFile(st, own) {
			return &executed{typ: typ, file: file, stderr: d.stderr, log: d.log}, nil
		}
		role, ok := d.table.Lookup(typ)
		if !ok {
			return nil, fmt.Errorf("%w: %q is this program, which has no role %q", roles.ErrNoPlugin, file, typ)
		}
		if slices.Contains(d.callers, typ) {
			return nil, fmt.Errorf("%w: plugin %q would call itself", roles.ErrConf, typ)
		}
		return d.local(typ, role), nil
	}
	return nil, fmt.Errorf("%w: no %q in CNI_PATH %q", roles.ErrNoPlugin, shortened(typ), strings.Join(path, ":"))
}

// local is a role of this very program.
type local struct {
	name string
	role *roles.Role
	host *roles.Host
	log  *slog.Logger
}

// local gives a role a host of its own name.
func (d *delegator) local(name string, role *roles.Role) *local {
	h := *d.host
	h.Role, h.Log = name, tagged(d.log, name)
	sub := *d
	sub.asRuntime, sub.host, sub.callers = false, &h, append(slices.Clip(d.callers), name)
	h.Delegate = &sub
	return &local{name: name, role: role, host: &h, log: d.log}
}

func (l *local) call(ctx context.Context, req *roles.Request) (*roles.Result, error) {
	var res *roles.Result
	err := l.with(req, func(h roles.Handler, req *roles.Request) error {
		var err error
		res, err = serve(ctx, h, l.host, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// with makes the role's handler and calls fn with it and a copy of the request.
// Errors name the role.
func (l *local) with(req *roles.Request, fn func(roles.Handler, *roles.Request) error) error {
	req = cloneRequest(req)
	h, err := newHandler(l.log, l.role, l.name, req.Verb, req.Conf)
	if err == nil {
		err = guarded(l.log, l.name, func() error { return fn(h, req) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	return nil
}

// cloneRequest is a deep copy: what a callee does to its request stays there.
func cloneRequest(r *roles.Request) *roles.Request {
	c := *r
	c.Path, c.Env, c.Conf = slices.Clone(r.Path), slices.Clone(r.Env), slices.Clone(r.Conf)
	c.Valid = slices.Clone(r.Valid)
	c.PrevResult = result.Clone(r.PrevResult)
	return &c
}
