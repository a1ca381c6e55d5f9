// Package election makes one of several processes the leader, by a Lease of coordination.k8s.io/v1.
//
// A leader that was stopped may send a request after its term, when another process leads. So a new
// leader must make such requests fail unless Term.Released is true: the resourceVersion of every object
// that the former leader may change must differ from the one that it has read, and every request of
// a leader must have the resourceVersion that it read before it called Term.Valid.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Options are the arguments of Run.
type Options struct {
	Client rest.Objects
	// Namespace and Name are the Lease's. It is made if it does not exist. That needs the verbs create,
	// get and patch on leases. If it is deleted while a process leads, another one may lead beside it
	// until the next renewal.
	Namespace, Name string
	// Identity is unique to this process, also among processes of other times.
	Identity string
	// Duration is the time without a renewal after which another process may lead. Deadline is the time
	// without a renewal after which the leader stops. Retry is the time between two attempts.
	Duration, Deadline, Retry time.Duration
	Log                       *slog.Logger
	// Now is the clock, or nil for time.Now.
	Now func() time.Time
	// Seen is called with the holder of the Lease after each attempt, or with an error.
	Seen func(holder string, err error)
}

// Check returns an error unless Retry < Deadline < Duration.
func (o *Options) Check() error {
	if o.Duration < time.Second || o.Duration > maxDuration || o.Duration%time.Second != 0 {
		return fmt.Errorf("%w: lease duration %s: give whole seconds from 1s to %s", cluster.ErrInvalid, o.Duration, maxDuration)
	}
	if o.Retry <= 0 || o.Deadline <= o.Retry || o.Duration <= o.Deadline {
		return fmt.Errorf("%w: lease duration %s, renew deadline %s, retry period %s: give a larger duration than deadline, and a larger deadline than period", cluster.ErrInvalid, o.Duration, o.Deadline, o.Retry)
	}
	return errors.Join(rest.CheckName("lease namespace", o.Namespace), rest.CheckName("lease name", o.Name))
}

// maxDuration bounds how long another process's Lease is respected without a renewal.
const maxDuration = time.Hour

// Term is a time in which this process leads.
type Term struct {
	// Released is true if no former leader can have requests that are not answered: it ended its term
	// itself, or there was none.
	Released bool

	now   func() time.Time
	mu    sync.Mutex
	until time.Time
}

// Valid reports whether this process certainly leads.
func (t *Term) Valid() bool {
	now, until := t.now(), t.Until()
	// The monotonic clock stands still while a virtual machine is suspended, and the other may be set.
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// Until returns the time at which the term ends unless it is extended.
func (t *Term) Until() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until
}

func (t *Term) extend(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = until
}

// lease has the fields of a Lease.
type lease struct {
	rest.Object
	Spec leaseSpec `json:"spec"`
}

type leaseSpec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int    `json:"leaseTransitions"`
}

// write is a Lease as it is created, or a merge patch of one.
type write struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Spec leaseSpec `json:"spec"`
}

// candidate is a run of Run.
type candidate struct {
	Options
	lease lease     // as last read or written
	since time.Time // when lease had this resourceVersion first
}

// observe stores the Lease as it was read or written.
func (c *candidate) observe(now lease) {
	if now.Metadata.ResourceVersion != c.lease.Metadata.ResourceVersion || c.since.IsZero() {
		c.since = c.Now()
	}
	c.lease = now
}

// Run calls lead in each term of this process, until ctx ends. The context of lead ends with the term.
// lead returns true if each of its requests was answered.
func Run(ctx context.Context, o Options, lead func(context.Context, *Term) (answered bool)) error {
	c := candidate{Options: o}
	if c.Now == nil {
		c.Now = time.Now
	}
	for {
		t, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		c.Log.Info("this process leads", "lease", c.Namespace+"/"+c.Name, "identity", c.Identity)
		c.hold(ctx, t, lead)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.Log.Warn("this process does not lead any more", "lease", c.Namespace+"/"+c.Name)
	}
}

// campaign waits until this process leads.
func (c *candidate) campaign(ctx context.Context) (*Term, error) {
	for {
		t, err := c.acquire(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.report(err)
		if t != nil {
			return t, nil
		}
		if c.pause(ctx) != nil {
			return nil, ctx.Err()
		}
	}
}

// report calls Seen. A conflict means that another process was faster.
func (c *candidate) report(err error) {
	if errors.Is(err, rest.ErrConflict) {
		err = nil
	}
	c.Seen(c.lease.Spec.HolderIdentity, err)
}

// pause waits for the time between two attempts, which differs between processes.
func (c *candidate) pause(ctx context.Context) error {
	b := web.Backoff{Min: c.Retry, Max: c.Retry}
	return b.Wait(ctx, 0)
}

// acquire makes one attempt to lead. It returns nil if another process leads.
func (c *candidate) acquire(ctx context.Context) (*Term, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Deadline)
	defer cancel()
	var now lease
	if err := c.Client.Get(ctx, c.path(c.Name), &now); err != nil && !errors.Is(err, rest.ErrNotFound) {
		return nil, fmt.Errorf("get lease %s/%s: %w", c.Namespace, c.Name, err)
	}
	c.observe(now)
	free := now.Spec.HolderIdentity == ""
	if !free && now.Spec.HolderIdentity != c.Identity && c.Now().Sub(c.since) <= c.promised() {
		return nil, nil
	}
	spec := leaseSpec{LeaseTransitions: now.Spec.LeaseTransitions + 1, AcquireTime: microTime(c.Now())}
	sent := c.Now()
	if err := c.write(ctx, spec, c.Identity); err != nil {
		return nil, err
	}
	return &Term{Released: free, now: c.Now, until: sent.Add(c.Deadline)}, nil
}

// promised returns the time for which the holder's renewal is respected.
func (c *candidate) promised() time.Duration {
	d := time.Duration(c.lease.Spec.LeaseDurationSeconds) * time.Second
	if d <= 0 || d > maxDuration {
		return c.Duration
	}
	return d
}

// write writes the Lease unless it differs from c.lease.
func (c *candidate) write(ctx context.Context, spec leaseSpec, holder string) error {
	spec.HolderIdentity, spec.LeaseDurationSeconds, spec.RenewTime = holder, int(c.Duration/time.Second), microTime(c.Now())
	w := write{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Spec: spec}
	w.Metadata.Name, w.Metadata.ResourceVersion = c.Name, c.lease.Metadata.ResourceVersion
	var now lease
	var err error
	if w.Metadata.ResourceVersion == "" {
		err = c.Client.Create(ctx, c.path(), &w, &now)
	} else {
		err = c.Client.Patch(ctx, c.path(c.Name), rest.MergePatch, &w, &now)
	}
	if err != nil {
		return fmt.Errorf("write lease %s/%s: %w", c.Namespace, c.Name, err)
	}
	c.observe(now)
	return nil
}

// hold calls lead and renews the Lease until the term ends.
func (c *candidate) hold(ctx context.Context, t *Term, lead func(context.Context, *Term) bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan bool, 1)
	go func() { ended <- lead(ctx, t) }()
	for t.Valid() && c.pause(ctx) == nil {
		sent := c.Now()
		err := c.put(ctx, t, c.Identity)
		if ctx.Err() != nil {
			break
		}
		c.report(err)
		if err == nil {
			t.extend(sent.Add(c.Deadline))
		} else if errors.Is(err, errLost) {
			break
		}
	}
	stop()
	if answered := <-ended; answered && t.Valid() {
		// The next leader need not wait for the end of the duration.
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), t.Until())
		defer cancel()
		err := c.put(ctx, t, "")
		for errors.Is(err, rest.ErrConflict) && c.pause(ctx) == nil {
			err = c.put(ctx, t, "")
		}
		if err != nil {
			c.Log.Warn("the lease is not released, and the next leader waits until it expires", "error", err)
		}
	}
}

// errLost means that another process holds the Lease, or that it was deleted.
var errLost = errors.New("lease lost")

// put renews the Lease, or releases it with an empty holder. If it has changed, for instance by a renewal without an answer,
// put reads it, and writes it if this process still holds it.
func (c *candidate) put(ctx context.Context, t *Term, holder string) error {
	ctx, cancel := context.WithDeadline(ctx, t.Until())
	defer cancel()
	err := c.write(ctx, c.lease.Spec, holder)
	if !errors.Is(err, rest.ErrConflict) && !errors.Is(err, rest.ErrNotFound) {
		return err
	}
	var now lease
	switch err := c.Client.Get(ctx, c.path(c.Name), &now); {
	case errors.Is(err, rest.ErrNotFound):
		return errLost
	case err != nil:
		return fmt.Errorf("get lease %s/%s: %w", c.Namespace, c.Name, err)
	}
	c.observe(now)
	if now.Spec.HolderIdentity != c.Identity {
		return errLost
	}
	return c.write(ctx, now.Spec, holder)
}

func (c *candidate) path(name ...string) string {
	return rest.Path(append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", c.Namespace, "leases"}, name...)...)
}

// microTime formats a metav1.MicroTime.
func microTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
