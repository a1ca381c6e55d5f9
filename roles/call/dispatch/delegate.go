package dispatch

import (
	"context"
	"encoding/json"
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

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

const (
	// delegateTimeout bounds one call of a delegate: DHCP servers are slow. With
	// delegateUndoTimeout it is below the two minutes after which kubelet cancels a request.
	delegateTimeout = 90 * time.Second
	// ipamTimeout bounds one call of an interface role's IPAM plugin. The interface role can be the
	// delegate of another process, which must not give up first: it would report the interface role.
	// So this is less, also with delegateUndoTimeout and two stopTimeout.
	ipamTimeout = 65 * time.Second
	// delegateUndoTimeout bounds the DEL after a failed ADD, whose delegate may hang again.
	delegateUndoTimeout = 10 * time.Second
)

// delegator calls plugins for one role.
type delegator struct {
	table      roles.Table
	executable string
	stderr     io.Writer
	host       *roles.Host
	// asRuntime means that no DEL follows a failed ADD, because DEL could remove an
	// attachment that an earlier call made. The user decides whether to call DEL.
	asRuntime bool
	// callers are the running roles of this program, outermost first.
	callers []string
	// timeout is delegateTimeout, and undoTimeout delegateUndoTimeout.
	timeout, undoTimeout time.Duration
	// log has no "role" attribute.
	log *slog.Logger
	// isCopy reports whether a file is a copy of this program; nil means that it is not asked.
	isCopy func(file string) bool
	// last is the last executed plugin's result, and printed its document.
	last    *roles.Result
	printed []byte
}

// NewDelegator returns the Delegator for a host. It finds plugins on the request's
// CNI_PATH, calls a plugin in process if its file is p.Executable, and executes any
// other file. A plugin that is called in process gets a copy of the request, a Host
// with its own role, and a deadline; its panic becomes an error. A host without a
// role belongs to the command line, which calls plugins as a runtime does: no DEL
// follows a failed ADD.
func NewDelegator(p Process, h *roles.Host, log *slog.Logger) roles.Delegator {
	return newDelegator(p, h, log)
}

func newDelegator(p Process, h *roles.Host, log *slog.Logger) *delegator {
	return &delegator{
		table: p.Table, executable: p.Executable, stderr: p.Stderr, host: h, asRuntime: h.Role == "", callers: []string{h.Role},
		timeout: delegateTimeout, undoTimeout: delegateUndoTimeout, log: log,
	}
}

// plugin is one delegate: a role of this program, or a file to execute.
type plugin interface {
	// call runs the request's verb. Only ADD returns a result.
	call(ctx context.Context, req *roles.Request) (*roles.Result, error)
}

// Add runs ADD. If ADD fails, Add runs DEL, which the spec requires of a plugin that
// delegates. If DEL fails too, the error has a roles.UndoError.
func (d *delegator) Add(ctx context.Context, typ string, req *roles.Request) (*roles.Result, error) {
	r := *req
	r.Recorded = new(bool)
	res, err := d.call(ctx, typ, roles.Add, &r)
	if err == nil || d.asRuntime || changedNothing(err) {
		return res, err
	}
	undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.undoTimeout)
	defer cancel()
	if _, undo := d.call(undoCtx, typ, roles.Del, &r); undo != nil {
		err = errors.Join(err, &roles.UndoError{Err: undo})
	}
	return nil, err
}

// changedNothing reports whether a failed ADD certainly changed nothing. Then no DEL
// may follow: it would remove the attachment of an earlier call.
func changedNothing(err error) bool {
	var executed *DelegateError
	return !errors.As(err, &executed) &&
		(errors.Is(err, roles.ErrNoPlugin) || errors.Is(err, roles.ErrConf) || errors.Is(err, roles.ErrAttached))
}

func (d *delegator) Del(ctx context.Context, typ string, req *roles.Request) error {
	r := *req
	r.Recorded = nil // the caller's own
	_, err := d.call(ctx, typ, roles.Del, &r)
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

// Clone returns a delegator with its own netlink connection, and the function that
// closes the connection. Everything else is shared.
func (d *delegator) Clone() (roles.Delegator, func()) {
	h, sub := *d.host, *d
	h.Net = d.host.Net.Clone()
	sub.host = &h
	return &sub, func() {
		if err := h.Net.Close(); err != nil {
			d.log.Warn("close netlink", "error", err)
		}
	}
}

// WithCopies returns a delegator that calls copies of this program in process.
func (d *delegator) WithCopies(isCopy func(file string) bool) roles.Delegator {
	sub := *d
	sub.isCopy = isCopy
	return &sub
}

// OverLink reports whether the type is a role of this program with OverLink set.
func (d *delegator) OverLink(typ string) bool {
	role, ok := d.table.Lookup(typ)
	return ok && role.OverLink
}

// Moves reports whether the type is a role of this program whose addresses may move.
func (d *delegator) Moves(typ string, req *roles.Request) bool {
	role, ok := d.table.Lookup(typ)
	return ok && role.Moves != nil && role.Moves(req.Conf)
}

// Find returns the error that a call of the type would have because no plugin is found.
func (d *delegator) Find(typ string, req *roles.Request) error {
	_, err := d.lookup(typ, req.Path)
	return err
}

// InProcess reports whether a call of the type would run in this process.
func (d *delegator) InProcess(typ string, req *roles.Request) bool {
	p, err := d.lookup(typ, req.Path)
	_, ours := p.(*builtin)
	return err == nil && ours
}

// Plan returns the plan of a role of this program. The error is roles.ErrUnplanned
// if the type is not a role of this program, or if the role is not a roles.Planner.
func (d *delegator) Plan(ctx context.Context, typ string, req *roles.Request) (*roles.Plan, error) {
	role, ok := d.table.Lookup(typ)
	if !ok {
		return nil, fmt.Errorf("%w: %q is not a role of this program", roles.ErrUnplanned, typ)
	}
	l := d.builtin(typ, role)
	var plan *roles.Plan
	err := l.with(req, func(h roles.Handler, req *roles.Request) error {
		p, ok := h.(roles.Planner)
		if !ok {
			return fmt.Errorf("%w: the role does not implement planning", roles.ErrUnplanned)
		}
		var err error
		plan, err = p.Plan(ctx, l.host, req)
		return err
	})
	return plan, err
}

// Preview returns the expected result of ADD. If the type is a role of this program,
// it asks the role, whatever file is on CNI_PATH: the file may not be installed yet,
// and a third-party plugin of the same type reads the same configuration. For a type that
// is not a role of this program, and for a role that is not a roles.Previewer or returns
// roles.ErrUnplanned, Preview returns a placeholder and roles.ErrUnplanned.
func (d *delegator) Preview(ctx context.Context, typ string, req *roles.Request) (*roles.Result, error) {
	role, ok := d.table.Lookup(typ)
	if !ok {
		if _, err := d.lookup(typ, req.Path); err != nil {
			return nil, err
		}
		return placeholder(), fmt.Errorf("%w: %q is not a role of this program, and assigns the addresses at ADD", roles.ErrUnplanned, typ)
	}
	l := d.builtin(typ, role)
	var res *roles.Result
	err := l.with(req, func(h roles.Handler, req *roles.Request) error {
		pv, ok := h.(roles.Previewer)
		if !ok {
			return fmt.Errorf("%w: the addresses are assigned at ADD", roles.ErrUnplanned)
		}
		var err error
		res, err = pv.Preview(ctx, l.host, req)
		return err
	})
	if errors.Is(err, roles.ErrUnplanned) {
		res = placeholder()
	}
	return res, err
}

// placeholder returns a result with an address for documentation (RFC 5737).
func placeholder() *roles.Result {
	return &roles.Result{
		CNIVersion: roles.ResultVersion,
		IPs: []*types100.IPConfig{{
			Address: net.IPNet{IP: net.IPv4(192, 0, 2, 2).To4(), Mask: net.CIDRMask(24, 32)},
			Gateway: net.IPv4(192, 0, 2, 1).To4(),
		}},
	}
}

// call finds a plugin and runs one verb of it, with a deadline.
func (d *delegator) call(ctx context.Context, typ string, verb roles.Verb, req *roles.Request) (*roles.Result, error) {
	if err := checkVerbVersion(verb, req.CNIVersion); err != nil {
		return nil, fmt.Errorf("%s: %w", typ, err)
	}
	p, err := d.lookup(typ, req.Path)
	if err != nil {
		return nil, err
	}
	role, known := d.table.Lookup(typ)
	timeout := d.timeout
	if caller, ok := d.table.Lookup(d.host.Role); ok && caller.Kind == roles.Interface { // its delegates are IPAM plugins
		// It calls them with its own container and interface name: another interface role would wait for the lock that it holds.
		if known && role.Kind != roles.IPAM {
			err := fmt.Errorf("%w: ipam.type: %q does not assign addresses: use an IPAM plugin, such as \"host-local\"", roles.ErrConf, typ)
			if verb == roles.Del || verb == roles.GC { // such a plugin assigned no address, and the attachment must be removable
				d.log.Warn("release no addresses of this plugin", "error", err)
				return nil, nil
			}
			return nil, err
		}
		timeout = min(timeout, ipamTimeout)
	}
	r := *req
	r.Verb = verb
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := newTraced(typ, verb, d.host)
	res, err := p.call(ctx, &r)
	e, isExecuted := p.(*executed)
	switch {
	case d.host.Steps == nil:
	case known && role.Kind == roles.IPAM:
		d.host.Steps.IPAM.Add(int64(time.Since(t.Time)))
	case isExecuted:
		d.host.Steps.Delegate.Add(int64(time.Since(t.Time)))
	}
	if isExecuted && res != nil {
		d.last, d.printed = res, e.printed
	}
	// An executed plugin traces itself. The command line's CHECKs are many and change nothing.
	if !isExecuted && d.asRuntime && isTraced(verb) && verb != roles.Check {
		d.trace(t, &r, res, err)
	}
	return res, err
}

// document returns what the last executed plugin printed, if res is its result and has the
// given version, else nil. It may have keys that a Result does not have.
func (d *delegator) document(res *roles.Result, version string) []byte {
	if res == nil || res != d.last {
		return nil
	}
	doc := d.printed
	own, err := rawjson.Get(doc, "cniVersion")
	if err == nil && absent(own) {
		own = json.RawMessage(`"` + version + `"`)
		doc, err = rawjson.Set(doc, "cniVersion", own)
	}
	if err != nil || string(own) != `"`+version+`"` {
		return nil
	}
	return doc
}

// trace adds a call of the command line to the trace.
func (d *delegator) trace(t *traced, req *roles.Request, res *roles.Result, err error) {
	t.Caller = "cnibox"
	var doc []byte
	if res != nil {
		doc, _ = render(res, req.CNIVersion) // a version that cannot express the result has none
	}
	var failure *errorObject
	if err != nil {
		o := newErrorObject(req.CNIVersion, t.Role, req.Verb, err)
		failure = &o
	}
	t.finish(d.host, d.log, delegateEnv(req), req.Network, req.Conf, doc, failure)
}

// lookup returns the plugin for a type. As libcni does, it takes the first regular file
// of that name on CNI_PATH and follows symbolic links.
func (d *delegator) lookup(typ string, path []string) (plugin, error) {
	if typ == "" || strings.ContainsRune(typ, filepath.Separator) {
		return nil, fmt.Errorf("%w: %q is not a plugin type", roles.ErrNoPlugin, shortened(typ))
	}
	for _, dir := range path {
		file := filepath.Join(dir, typ)
		st, err := os.Stat(file)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		own, err := os.Stat(d.executable)
		if (err != nil || !os.SameFile(st, own)) && (d.isCopy == nil || !d.isCopy(file)) {
			return &executed{typ: typ, file: file, stderr: d.stderr, log: d.log}, nil
		}
		role, ok := d.table.Lookup(typ)
		if !ok {
			return nil, fmt.Errorf("%w: %q is this program, which has no role %q", roles.ErrNoPlugin, file, typ)
		}
		if slices.Contains(d.callers, typ) {
			return nil, fmt.Errorf("%w: plugin %q would call itself", roles.ErrConf, typ)
		}
		return d.builtin(typ, role), nil
	}
	if len(path) == 0 {
		return nil, fmt.Errorf("%w: required env variables [CNI_PATH] missing: %w: %q", roles.ErrEnv, roles.ErrNoPlugin, shortened(typ))
	}
	return nil, fmt.Errorf("%w: no %q in CNI_PATH %q", roles.ErrNoPlugin, shortened(typ), strings.Join(path, ":"))
}

// builtin is a role of this program that is called in process.
type builtin struct {
	name string
	role *roles.Role
	host *roles.Host
	log  *slog.Logger
	// table has the roles whose arguments CNI_ARGS may contain.
	table roles.Table
}

// builtin returns a role with a copy of the host whose Role, Log and Delegate are the
// role's.
func (d *delegator) builtin(name string, role *roles.Role) *builtin {
	h := *d.host
	h.Role, h.Log = name, tagged(d.log, name)
	sub := *d
	sub.asRuntime, sub.host, sub.callers = false, &h, append(slices.Clip(d.callers), name)
	h.Delegate = &sub
	return &builtin{name: name, role: role, host: &h, log: d.log, table: d.table}
}

func (l *builtin) call(ctx context.Context, req *roles.Request) (*roles.Result, error) {
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

// with creates the role's handler and calls fn with it and a copy of the request.
// Errors begin with the role's name.
func (l *builtin) with(req *roles.Request, fn func(roles.Handler, *roles.Request) error) error {
	req = cloneRequest(req)
	h, err := newHandler(l.log, l.role, l.name, req, req.Conf)
	if err == nil {
		err = checkArgs(req, l.role, l.table)
	}
	if err == nil {
		err = catchPanic(l.log, l.name, func() error { return fn(h, req) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	return nil
}

// cloneRequest returns a deep copy, so that a callee cannot change the caller's
// request.
func cloneRequest(r *roles.Request) *roles.Request {
	c := *r
	c.Path, c.Env, c.Conf = slices.Clone(r.Path), slices.Clone(r.Env), slices.Clone(r.Conf)
	c.Valid = slices.Clone(r.Valid)
	c.PrevResult = result.Clone(r.PrevResult)
	return &c
}
