package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

type podRequest = netops.PodPolicy

// fetchTime bounds the search for a pod that the source has not sent yet, and maxFetches the number of such searches at once.
const (
	fetchTime  = enforce.AskTime / 2
	maxFetches = 16
)

// accept returns a function that passes a client's request on to Run, until done is closed.
func (k *Keeper) accept(done <-chan struct{}) func(net.Conn) {
	return func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(2 * enforce.AskTime))
		go func() {
			r := &request{conn: c, podRequest: new(podRequest), until: time.Now().Add(enforce.AskTime)}
			line, err := bufio.NewReader(io.LimitReader(c, enforce.MaxMessage)).ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, r)
			}
			if err == nil && !r.State && !r.Off && !r.Denied {
				err = r.check()
			}
			if r.Verb != "" {
				r.until = time.Now().Add(enforce.ChangeTime / 2)
			}
			if err != nil {
				_ = c.Close()
				return
			}
			select {
			case k.requests <- r:
			case <-done:
				_ = c.Close()
			}
		}()
	}
}

// maxEarly bounds the ADD calls that wait for the first reading.
const maxEarly = 1000

// isEarly reports whether a request waits for the first reading.
func (k *Keeper) isEarly(r *request) bool {
	k.early = slices.DeleteFunc(k.early, func(old *request) bool {
		late := time.Now().After(old.until)
		if late {
			_ = old.conn.Close() // the call went on
		}
		return late
	})
	is := !k.synced && !k.Remembered && k.Source.FromFiles() && r.Verb == "" && !r.State && !r.Off && !r.Denied && len(k.early) < maxEarly
	if is {
		k.early = append(k.early, r)
	}
	return is
}

// answerEarly answers the requests that waited for the first reading.
func (k *Keeper) answerEarly(ctx context.Context) {
	early := k.early
	k.early = nil
	for _, r := range early {
		k.answer(ctx, r)
	}
}

// answer announces the pod of a request, makes the kernel's objects that it needs, and answers. The kernel has the chains
// before ADD adds the pod's elements.
func (k *Keeper) answer(ctx context.Context, r *request) {
	switch {
	case r.State:
		k.sendState(r)
		return
	case r.Denied:
		k.sendDenied(r)
		return
	case r.Off:
		k.end(r)
		return
	}
	if time.Now().After(r.until) || isClosed(r.conn) { // the call goes on by itself, and its pod may have ended
		_ = r.conn.Close()
		return
	}
	if r.Verb != "" {
		r.answer(enforce.Answer{Done: r.Verb}, k.change(ctx, r))
		return
	}
	if k.mustFetch(r) {
		go k.fetch(ctx, r)
		return
	}
	a, err := k.choose(ctx, r.podRequest)
	r.answer(a, err)
}

// end ends a Keeper that was not asked for.
func (k *Keeper) end(r *request) {
	if !k.Remembered {
		r.answer(enforce.Answer{}, control.ErrAsked)
		return
	}
	select {
	case <-k.off: // another request ended it
	default:
		close(k.off)
		k.closeKnown()
	}
	r.answer(enforce.Answer{}, nil)
}

// check refuses what would make the kernel refuse the changes of all pods.
func (r *request) check() error {
	if !strings.HasPrefix(r.Label, attachment.LabelPrefix) {
		return fmt.Errorf("%w: label %q", netops.ErrInvalid, r.Label)
	}
	return r.Check()
}

// isClosed reports whether the other end of a connection is closed: a frozen agent finds requests of calls that ended long ago.
func isClosed(c net.Conn) (closed bool) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
	})
	return closed || err != nil
}

// change adds or deletes the elements of a pod for its ADD or DEL.
func (k *Keeper) change(ctx context.Context, r *request) error {
	switch {
	case r.Verb == netops.VerbDel:
		k.local.end(r.podRequest)
		if done, err := k.filter.Delete(ctx, r.Label); done && err == nil {
			return nil
		}
		return k.Host.Net.DeletePodPolicy(ctx, r.podRequest)
	case r.Verb != netops.VerbAdd:
		return fmt.Errorf("%w: verb %q", netops.ErrInvalid, r.Verb)
	case !k.synced:
		return errUnknown
	}
	k.local.put(r.podRequest)
	k.local.putInto(k.table)
	return k.filter.Ensure(ctx, k.rules())
}

// mustFetch reports whether to ask the source for the pod of a request, which it has not sent, and adds the pod after that. If the
// source has sent another pod of that name meanwhile, its answer may be older.
func (k *Keeper) mustFetch(r *request) bool {
	have := k.table.Pod(r.Namespace, r.Name)
	switch {
	case !k.synced || k.Source.FromFiles() || have != nil && have.Is(r.UID):
		return false
	case !r.fetched || have != r.before:
		r.found, r.before = nil, have
		return true
	case r.found != nil && r.found.Is(r.UID):
		k.table.PutPod(r.found)
		k.local.found[r.Label] = r.found
	}
	return false
}

func (r *request) answer(a enforce.Answer, err error) {
	if err != nil {
		a = enforce.Answer{Error: fmt.Sprintf("%.500s", err)}
	}
	_ = json.NewEncoder(r.conn).Encode(a) // the client may have ended
	_ = r.conn.Close()
}

// sendState sends the table's objects, without blocking the Keeper.
func (k *Keeper) sendState(r *request) {
	s := &netpolicy.State{Error: errUnknown.Error()}
	if k.synced {
		s = k.table.State()
	}
	_ = r.conn.SetDeadline(time.Now().Add(control.StateTime))
	go func() {
		_ = json.NewEncoder(r.conn).Encode(s) // the client may have ended
		_ = r.conn.Close()
	}()
}

// errUnknown is the answer before the first reading of the source.
var errUnknown = errors.New("the agent has not read the network policies yet")

func (k *Keeper) choose(ctx context.Context, p *podRequest) (a enforce.Answer, err error) {
	if err := k.Unready(); err != nil {
		a.Refused = err.Error()
		return a, nil
	}
	if !k.synced {
		return a, errUnknown
	}
	k.local.announce(p)
	k.local.putInto(k.table)
	rules := k.rules()
	a.Refused = k.table.Conflicts()[p.Label]
	if a.Refused != "" {
		a.Refused += ": use networks with different addresses"
		k.local.forget(p)
		k.local.putInto(k.table)
		return a, nil
	}
	if err := k.filter.Ensure(ctx, rules); err != nil {
		return a, err
	}
	for _, addr := range p.Addresses {
		pod := rules.Pending[addr]
		a.Egress, a.Ingress = pod.Egress, pod.Ingress
	}
	return a, nil
}

// fetch searches the pod of a request, which the source has not sent yet, and passes the request on to Run again. A pod that is not
// found has the chain that drops everything, until the source sends it.
func (k *Keeper) fetch(ctx context.Context, r *request) {
	p := r.podRequest
	within, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	err := context.DeadlineExceeded
	select {
	case k.fetching <- struct{}{}:
		if err = within.Err(); err == nil {
			r.found, err = k.Source.Fetch(within, p.Namespace, p.Name)
		}
		<-k.fetching
	case <-within.Done():
	}
	if err != nil {
		k.Host.Log.Warn("a pod is not known: it is denied all packets until it is", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	r.fetched = true
	select {
	case k.requests <- r:
	case <-ctx.Done():
		_ = r.conn.Close()
	}
}
