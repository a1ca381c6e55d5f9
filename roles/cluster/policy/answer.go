package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/service"
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

// request is a call that waits for an answer: an ADD, a DEL, or a command that asks for the state.
type request struct {
	*podRequest
	// name is what is asked, and after a control.DeniedQuestion.
	name  string
	after control.DeniedQuestion
	// asked is nil in tests.
	asked *service.Request
	// done receives the answer, of which there is one.
	done chan answered
	// until is when the call goes on without an answer.
	until time.Time
	// fetched is true after the source was asked for the pod. found is its answer, and before what it had sent before.
	fetched       bool
	found, before *netpolicy.Pod
}

// answered is the answer to a request.
type answered struct {
	data any
	err  error
}

// handlers returns what answers requests: each is passed on to Run.
func (k *Keeper) handlers() map[string]service.Handler {
	all := map[string]service.Handler{}
	for _, name := range []string{
		service.PolicyChoose, service.PolicyAdd, service.PolicyDel, service.PolicyState, service.PolicyDenied, service.PolicyOff,
	} {
		all[name] = func(ctx context.Context, asked *service.Request) (any, error) {
			r := &request{podRequest: new(podRequest), name: name, asked: asked, done: make(chan answered, 1), until: time.Now().Add(enforce.AskTime)}
			if err := r.read(); err != nil {
				return nil, err
			}
			a, err := service.Pass(ctx, k.requests, r, r.done)
			return a.data, cmp.Or(err, a.err)
		}
	}
	return all
}

// read reads the arguments, and refuses what would make the kernel refuse the changes of all pods.
func (r *request) read() error {
	switch r.name {
	case service.PolicyDenied:
		return r.asked.Decode(&r.after)
	case service.PolicyState, service.PolicyOff:
		return nil
	case service.PolicyAdd, service.PolicyDel:
		r.until = time.Now().Add(enforce.ChangeTime / 2)
	}
	if err := r.asked.Decode(r.podRequest); err != nil {
		return err
	}
	if !strings.HasPrefix(r.Label, attachment.LabelPrefix) {
		return fmt.Errorf("%w: label %q", netops.ErrInvalid, r.Label)
	}
	return r.Check()
}

// answer answers a request.
func (r *request) answer(data any, err error) { r.done <- answered{data, err} }

// errLate ends a request whose client has gone on without an answer.
var errLate = errors.New("the answer is late")

// maxEarly bounds the ADD calls that wait for the first reading. They are less than the clients of the agent's socket.
const maxEarly = 500

// isEarly reports whether a request waits for the first reading.
func (k *Keeper) isEarly(r *request) bool {
	k.endLate()
	is := !k.synced && !k.Remembered && k.Source.FromFiles() && r.name == service.PolicyChoose && len(k.early) < maxEarly
	if is {
		k.early = append(k.early, r)
	}
	return is
}

// endLate ends the requests whose clients have gone on.
func (k *Keeper) endLate() {
	k.early = slices.DeleteFunc(k.early, func(old *request) bool {
		late := time.Now().After(old.until)
		if late {
			old.answer(nil, errLate)
		}
		return late
	})
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
	switch r.name {
	case service.PolicyState:
		r.answer(k.state())
		return
	case service.PolicyDenied:
		r.answer(k.deniedAfter(r.after.After), nil)
		return
	case service.PolicyOff:
		r.answer(nil, k.end())
		return
	}
	if time.Now().After(r.until) || r.asked.IsGone() { // the call goes on by itself, and its pod may have ended
		r.answer(nil, errLate)
		return
	}
	if r.name != service.PolicyChoose {
		r.answer(nil, k.change(ctx, r))
		return
	}
	if k.mustFetch(r) {
		go k.fetch(ctx, r)
		return
	}
	r.answer(k.choose(ctx, r.podRequest))
}

// end ends a Keeper that was not asked for.
func (k *Keeper) end() error {
	if !k.Remembered {
		return control.ErrAsked
	}
	select {
	case <-k.off: // another request ended it
	default:
		close(k.off)
		k.closeKnown()
	}
	return nil
}

// change adds or deletes the elements of a pod for its ADD or DEL.
func (k *Keeper) change(ctx context.Context, r *request) error {
	switch {
	case r.name == service.PolicyDel:
		k.local.end(r.podRequest)
		if done, err := k.filter.Delete(ctx, r.Label); done && err == nil {
			return nil
		}
		return k.Host.Net.DeletePodPolicy(ctx, r.podRequest)
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

// state returns the table's objects.
func (k *Keeper) state() (*netpolicy.State, error) {
	if !k.synced {
		return nil, errUnknown
	}
	return k.table.State(), nil
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
	}
}
