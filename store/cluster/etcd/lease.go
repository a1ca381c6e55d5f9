package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// held is the lease of the node's record, and the record's key.
type held struct {
	mu    sync.Mutex
	lease int64
	ttl   time.Duration
	key   string
	// changed wakes renew.
	changed chan struct{}
}

func (h *held) get() (lease int64, ttl time.Duration, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease, h.ttl, h.key
}

func (h *held) publish(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.key = key
}

// set replaces the lease. 0 means no lease.
func (h *held) set(lease int64, ttl time.Duration) {
	h.mu.Lock()
	h.lease, h.ttl = lease, ttl
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default: // a wake-up is pending
	}
}

// lease returns the held lease if it has not expired, or else a new one.
func (r *Registry) lease(ctx context.Context) (int64, error) {
	id, _, _ := r.held.get()
	if id != 0 {
		ttl, err := r.keepAlive(ctx, id)
		if err != nil {
			return 0, err
		}
		if ttl > 0 {
			r.held.set(id, ttl)
			return id, nil
		}
	}
	got, err := r.grant(ctx)
	if err != nil {
		return 0, err
	}
	r.held.set(got.ID, seconds(got.TTL))
	return got.ID, nil
}

// grant returns a new lease.
func (r *Registry) grant(ctx context.Context) (got leaseResponse, err error) {
	err = r.c.call(ctx, "/v3/lease/grant", leaseRequest{TTL: int64(leaseTTL / time.Second)}, &got)
	if err == nil && (got.ID == 0 || got.Error != "") {
		err = fmt.Errorf("%w: %q", cluster.ErrUnavailable, got.Error)
	}
	if err != nil {
		return got, fmt.Errorf("grant lease: %w", err)
	}
	return got, nil
}

// keep continues with the lease of one of the node's records, and reports whether the lease is alive.
// Without a lease the record is a reservation, which does not expire.
func (r *Registry) keep(ctx context.Context, id int64) (bool, error) {
	if id == 0 {
		r.held.set(0, 0)
		return true, nil
	}
	ttl, err := r.keepAlive(ctx, id)
	if err != nil {
		return false, err
	}
	if ttl <= 0 {
		r.held.set(0, 0)
		return false, nil
	}
	r.held.set(id, ttl)
	return true, nil
}

// keepAlive renews a lease and returns its remaining time, which is 0 if it has expired.
func (r *Registry) keepAlive(ctx context.Context, id int64) (time.Duration, error) {
	var got keepAliveResponse
	if err := r.c.call(ctx, "/v3/lease/keepalive", leaseRequest{ID: id}, &got); err != nil {
		return 0, fmt.Errorf("renew lease: %w", err)
	}
	if got.Error != nil {
		return 0, fmt.Errorf("renew lease: %w", got.Error)
	}
	if got.Result == nil {
		return 0, fmt.Errorf("renew lease: %w: empty reply", cluster.ErrUnavailable)
	}
	return seconds(got.Result.TTL), nil
}

// seconds converts a number from the server, within bounds.
func seconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, int64(2*leaseTTL/time.Second)))) * time.Second
}

// renew renews the lease until ctx ends. It forgets an expired lease. etcd has deleted the record of
// that, which Watch reports, and the agent calls Acquire again.
func (r *Registry) renew(ctx context.Context) {
	wait := web.Backoff{Min: time.Second, Max: time.Minute}
	var again time.Duration // until the next attempt after a failed one
	for ctx.Err() == nil {
		id, ttl, _ := r.held.get()
		var due <-chan time.Time
		var timer *time.Timer
		if id != 0 {
			after := renewAfter(ttl, r.o.RenewMargin)
			if again > 0 {
				after = again
			}
			timer = time.NewTimer(after)
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-r.held.changed:
			again = 0
		case <-due:
			left, err := r.keepAlive(ctx, id)
			switch {
			case err == nil:
				wait.Reset()
				again = 0
				r.renewed(id, left)
			case again == 0:
				r.warn(fmt.Sprintf("cannot renew the lease of this node's record, trying again: %v", err))
				fallthrough
			default:
				again = wait.Next(0)
			}
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// renewed stores a lease's remaining time, unless another lease is held by then.
func (r *Registry) renewed(id int64, left time.Duration) {
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	if r.held.lease == id {
		r.held.ttl = left
		if left <= 0 {
			r.held.lease = 0
		}
	}
}

// renewAfter returns the delay of the next renewal of a lease that has ttl left: a third of it, so
// that etcd may be unavailable for long, and no later than margin before its end.
func renewAfter(ttl, margin time.Duration) time.Duration {
	return max(time.Second, min(ttl/3, ttl-margin))
}
