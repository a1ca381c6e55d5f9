package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cnibox/cnibox/netops/egress"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// Times of a Lease. A node takes it when it was not renewed for leaseDuration by the node's own clock, and looks after half of retryPeriod
// to all of it. So another node has it at most 5 s after the holder's last renewal. The holder gives it up renewDeadline after it sent
// the last renewal that was answered. If it does not run any more, the kernel removes the address: its lifetime is in whole seconds, and
// ends up to kernelLate after them (inet_check_lifetime and addrconf_verify_rtnl, which wait up to 1.25 s between two looks).
const (
	leaseDuration = 4 * time.Second
	renewDeadline = 2500 * time.Millisecond
	retryPeriod   = 500 * time.Millisecond
	kernelLate    = 1500 * time.Millisecond
)

// holdInterval is the time between two looks of a holder at its term.
const holdInterval = 200 * time.Millisecond

// announcements is how often a new holder announces an address, once a second: a switch may lose one.
const announcements = 3

// announceTime bounds the request of a holder that tells other nodes. It is shorter than the lifetime of the address, which the holder prolongs after it.
const announceTime = time.Second

// faultTime is the time after which a node that could not hold an address tries again.
const faultTime = 5 * time.Second

// lifetime returns how long the kernel may have an address in a term, so that it has none when another node may have it.
func lifetime(until, now time.Time) time.Duration {
	// Each clock must agree: the monotonic one stands still while a virtual machine is suspended.
	left := min(until.Sub(now), until.Round(0).Sub(now.Round(0)))
	if left <= 0 {
		return 0
	}
	return (left + leaseDuration - renewDeadline - kernelLate).Truncate(time.Second)
}

// campaign is this node's candidacy for an address.
type campaign struct {
	stop context.CancelFunc
	// fault is why this node cannot hold the address. lease is the error of the last request.
	fault, lease error
}

// ineligible returns why this node holds no addresses, or nil. labelled is false if nobody wants it to.
func (k *Keeper) ineligible() (labelled bool, why error) {
	value, labelled := k.own.Metadata.Labels[NodeLabel]
	if !labelled || value == "false" {
		return false, fmt.Errorf("the node has no label %s", NodeLabel)
	}
	if cloud := cloudOf(k.own.Spec.ProviderID); cloud != "" {
		return true, fmt.Errorf("the node has the label %s, and holds no address: its provider %s sends packets only to addresses that it has given to the node. Remove the label", NodeLabel, cloud)
	}
	return true, k.facts.Fault
}

// campaign starts and ends candidacies.
func (k *Keeper) campaign(ctx context.Context, running *sync.WaitGroup) {
	k.comparing.Lock()
	last := k.last
	k.comparing.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if last == nil || ctx.Err() != nil {
		return
	}
	_, why := k.ineligible()
	for a, c := range k.campaigns {
		if why != nil || last.wanted[a] == nil {
			c.stop()
		}
	}
	if why != nil {
		return
	}
	for a := range last.wanted {
		if k.campaigns[a] != nil {
			continue
		}
		within, stop := context.WithCancel(ctx)
		c := &campaign{stop: stop}
		k.campaigns[a] = c
		running.Go(func() {
			defer stop()
			k.stand(within, ctx, a, c)
			k.mu.Lock()
			delete(k.campaigns, a)
			k.mu.Unlock()
			notify(k.work)
		})
	}
}

// stand is a candidate for an address until ctx ends. all ends with the agent.
func (k *Keeper) stand(ctx, all context.Context, a netip.Addr, c *campaign) {
	for ctx.Err() == nil {
		h, err := k.kernel.Find(ctx, a)
		if err == nil && h.Own {
			err = fmt.Errorf("this node cannot hold %s: it has the address itself. Remove it from the node", a)
		}
		if err == nil {
			err = k.run(ctx, all, a, c)
		}
		k.mu.Lock()
		c.fault = err
		k.mu.Unlock()
		notify(k.work)
		select {
		case <-ctx.Done():
		case <-time.After(faultTime):
		}
	}
}

// run is a candidate until ctx ends, or until the node cannot hold the address.
func (k *Keeper) run(ctx, all context.Context, a netip.Addr, c *campaign) error {
	within, stop := context.WithCancel(ctx)
	defer stop()
	var fault error
	o := election.Options{
		// A restarted agent goes on with its Lease. Only one runs on the node: its socket has a lock.
		Client: k.Client, Namespace: k.Namespace, Name: addressName(a), Identity: k.Node, Log: k.Log,
		Duration: leaseDuration, Deadline: renewDeadline, Retry: retryPeriod,
		Seen: func(_ string, err error) {
			k.mu.Lock()
			changed := (c.lease == nil) != (err == nil)
			c.lease, c.fault = err, nil
			k.mu.Unlock()
			if changed {
				notify(k.work)
			}
		},
	}
	if err := o.Check(); err != nil {
		return err
	}
	_ = election.Run(within, o, func(ctx context.Context, t *election.Term) bool {
		fault = k.hold(ctx, all, a, t)
		if fault != nil {
			stop()
		}
		return all.Err() == nil // an agent that ends leaves its node the Lease, for the next one
	})
	if ctx.Err() != nil {
		return nil
	}
	return fault
}

// hold has an address for a term. It returns why the node cannot hold it.
func (k *Keeper) hold(ctx, all context.Context, a netip.Addr, t *election.Term) error {
	h, err := k.kernel.Find(ctx, a)
	if err != nil || h.Own {
		return cannotHold(a, err)
	}
	defer func() {
		if all.Err() != nil {
			return // the agent may be back before the address ends
		}
		ended := context.WithoutCancel(ctx)
		if err := k.kernel.Release(ended, h, a); err != nil {
			k.Log.Warn("cannot remove an egress address: the kernel removes it in seconds", "address", a, "error", err)
		}
		_ = k.setHeld(ended, a, false) // an error is in the status
	}()
	tick := time.NewTicker(holdInterval)
	defer tick.Stop()
	holder := holding{keeper: k, address: a, term: t}
	var renewed time.Time
	for ctx.Err() == nil && t.Valid() {
		if until := t.Until(); !until.Equal(renewed) {
			if err := k.prolong(ctx, &h, a, t); err != nil {
				return cannotHold(a, err)
			}
			renewed = until
			holder.step(ctx, h)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

func cannotHold(a netip.Addr, err error) error {
	return fmt.Errorf("this node cannot hold %s: %w", a, errors.Join(err, errHolding))
}

// errHolding is part of errors that keep a node from holding an address.
var errHolding = errors.New("another node may")

// prolong gives the node the address until the term's end. If the process was stopped in between, the term may have ended.
func (k *Keeper) prolong(ctx context.Context, h *egress.Holding, a netip.Addr, t *election.Term) error {
	for again := false; ; again = true {
		left := lifetime(t.Until(), time.Now())
		if left < time.Second {
			return nil
		}
		err := k.kernel.Hold(ctx, *h, a, left)
		if !t.Valid() {
			return k.kernel.Release(context.WithoutCancel(ctx), *h, a)
		}
		if err == nil || again {
			return err
		}
		found, e := k.kernel.Find(ctx, a) // the link may have been made anew
		if e != nil {
			return e
		}
		*h = found
	}
}

// holding is what remains to do for a new holder.
type holding struct {
	keeper    *Keeper
	address   netip.Addr
	term      *election.Term
	announced int
	last      time.Time
}

// step does what is due. A failed step is tried again after the next renewal.
func (o *holding) step(ctx context.Context, h egress.Holding) {
	k := o.keeper
	if err := k.setHeld(ctx, o.address, true); err != nil {
		return // it is in the status
	}
	if o.announced < announcements && time.Since(o.last) >= time.Second {
		o.announced, o.last = o.announced+1, time.Now()
		if err := h.Announce(o.address); err != nil {
			k.Log.Warn("cannot announce an egress address", "address", o.address, "link", h.Link, "error", err)
		}
	}
	k.mu.Lock()
	known := k.facts.holders[o.address] == k.Node
	k.mu.Unlock()
	if known {
		return
	}
	if err := o.publish(ctx); err != nil && ctx.Err() == nil {
		k.Log.Warn("cannot tell the other nodes that this node holds an egress address: it tries again", "address", o.address, "error", err)
	}
}

// publish writes that this node holds the address. A former holder's request that arrives later is refused, because it has another version.
func (o *holding) publish(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, announceTime)
	defer stop()
	name, k := addressName(o.address), o.keeper
	var have configMap
	if err := k.Client.Get(ctx, k.path(name), &have); err != nil && !errors.Is(err, rest.ErrNotFound) {
		return err
	}
	if !o.term.Valid() {
		return nil
	}
	return k.write(ctx, name, have.Metadata.ResourceVersion, map[string]string{addressKey: o.address.String(), holderKey: k.Node})
}

// setHeld stores whether this node holds an address, and makes the kernel match.
func (k *Keeper) setHeld(ctx context.Context, a netip.Addr, held bool) error {
	k.mu.Lock()
	was := k.facts.held[a]
	if held {
		k.facts.held[a] = true
	} else {
		delete(k.facts.held, a)
	}
	k.mu.Unlock()
	if was == held && k.isApplied(a, held) {
		return nil
	}
	err := k.compare(ctx)
	if err == nil && was != held {
		k.Log.Info("egress address", "address", a, "held", held)
	}
	return err
}

// isApplied reports whether the kernel has been told last that the node holds an address, or not.
func (k *Keeper) isApplied(a netip.Addr, held bool) bool {
	k.comparing.Lock()
	defer k.comparing.Unlock()
	return k.last != nil && k.last.held[a] == held
}
