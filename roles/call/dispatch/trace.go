package dispatch

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/redact"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// The environment variables of the trace. TRACEPARENT is the W3C's (Trace Context level 1, section 3.2).
const (
	envTrace       = "CNIBOX_TRACE"
	envTraceParent = "TRACEPARENT"
)

// Limits of a traced call, in bytes. GC's list of a full node and a long configuration fit.
const (
	maxTraceText = 16 << 10
	maxTraceName = 1 << 10
	// callSpace is the average size of a traced call.
	callSpace = 2 << 10
)

// traced is a call that is added to the trace at its end.
type traced struct {
	store.TracedCall
	before store.Steps
}

// newTraced begins a call of a role. h may be nil.
func newTraced(role string, verb roles.Verb, h *roles.Host) *traced {
	t := &traced{TracedCall: store.TracedCall{Time: time.Now().UTC(), Role: role, Verb: string(verb)}}
	if h != nil {
		t.before = h.Steps.Read()
	}
	return t
}

// finish adds the call to the trace. What it cannot store is missing there, and the call does not fail.
func (t *traced) finish(h *roles.Host, log *slog.Logger, env []string, network string, stdin, result []byte, failure *errorObject) {
	limit := traceLimit(env, log)
	if limit == 0 {
		return
	}
	t.Took = time.Since(t.Time)
	after := h.Steps.Read()
	t.Steps = store.Steps{
		Lock: after.Lock - t.before.Lock, IPAM: after.IPAM - t.before.IPAM, Delegate: after.Delegate - t.before.Delegate,
		Netlink: after.Netlink - t.before.Netlink, Nftables: after.Nftables - t.before.Nftables,
	}
	get := func(key string) string { return cutAt(getenv(env, key), maxTraceName) }
	t.Network, t.ContainerID, t.IfName, t.Netns = cutAt(network, maxTraceName), get(envContainerID), get(envIfName), get(envNetns)
	t.Args, t.Path, t.TraceParent = redact.Args(get(envArgs)), get(envPath), traceParent(get(envTraceParent))
	args, _ := roles.ParseArgs(t.Args)
	t.Pod = (&roles.Request{Args: args}).Pod()
	t.Stdin, t.Result, t.Program = t.text(stdin), t.text(result), h.Program
	if failure != nil {
		t.Code, t.Error, t.Details = failure.Code, redact.Text(failure.Msg), redact.Text(cutAt(failure.Details, maxMsg))
	}
	if err := h.Store.Trace(&t.TracedCall, limit); err != nil {
		log.Debug("the call is not traced", "error", err)
	}
}

// text returns a redacted JSON text for the trace.
func (t *traced) text(raw []byte) string {
	if len(raw) > maxTraceText {
		raw, t.Cut = raw[:maxTraceText], true
	}
	return string(redact.JSON(raw))
}

// isTraced reports whether calls of a verb are traced. Runtimes ask for STATUS and VERSION all the time, and
// these change nothing.
func isTraced(verb roles.Verb) bool {
	return slices.Contains([]roles.Verb{roles.Add, roles.Del, roles.Check, roles.GC}, verb)
}

// traceLimit returns the size of the trace, or 0 if nothing is traced.
func traceLimit(env []string, log *slog.Logger) int64 {
	calls, v := uint64(store.DefaultTrace), getenv(env, envTrace)
	if v != "" {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			log.Warn("CNIBOX_TRACE is ignored: set it to a number of calls below 65536, or 0", "value", shortened(v))
		} else {
			calls = n
		}
	}
	return int64(calls) * callSpace
}

// traceParent returns the text if it is a valid traceparent, else "".
func traceParent(s string) string {
	isHex := func(part string, digits int) bool {
		return len(part) == digits && strings.Trim(part, "0123456789abcdef") == ""
	}
	p := strings.Split(s, "-")
	if len(p) < 4 || len(p) > 4 && p[0] == "00" || p[0] == "ff" || !isHex(p[0], 2) || !isHex(p[1], 32) || !isHex(p[2], 16) || !isHex(p[3], 2) ||
		strings.Trim(p[1], "0") == "" || strings.Trim(p[2], "0") == "" {
		return ""
	}
	return strings.Join(p[:4], "-")
}

// callerName returns the name of the process that executed this one, such as containerd, or "". It does not use
// package os, which would create an epoll instance.
func callerName() string {
	fd, err := unix.Open("/proc/"+strconv.Itoa(unix.Getppid())+"/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	var name [16]byte                     // TASK_COMM_LEN
	n, err := unix.Read(fd, name[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name[:n]))
}
