package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/store/cluster"
)

// publisher writes to the registry what the loop asks it to write. The loop does not wait for it.
type publisher struct {
	// asked requests that this node is published. ready requests that the registry learns that the pod network works. acquired
	// carries the results of publishing.
	asked    chan publishRequest
	ready    chan struct{}
	acquired chan acquisition
	// announced is the loop's. It is true after a request that the registry learns that the pod network works.
	announced bool
}

func newPublisher() publisher {
	return publisher{asked: make(chan publishRequest, 1), ready: make(chan struct{}, 1), acquired: make(chan acquisition)}
}

// acquisition is the result of publishing this node.
type acquisition struct {
	node cluster.Node
	err  error
}

// run writes until ctx ends.
func (p *publisher) run(ctx context.Context, registry *registryClient, log *slog.Logger) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		retryLatest(ctx, p.asked, publishRequest.same, func(ctx context.Context, want publishRequest) error {
			got, err := registry.Acquire(ctx, want.node)
			select {
			case p.acquired <- acquisition{got, err}:
			case <-ctx.Done():
			}
			return err
		})
	})
	if registry.skipReady {
		return
	}
	retryLatest(ctx, p.ready, func(a, b struct{}) bool { return a == b }, func(ctx context.Context, _ struct{}) error {
		err := registry.Ready(ctx)
		if err != nil && ctx.Err() == nil {
			log.Warn("cannot inform the registry that the pod network works", "error", err)
		}
		return err
	})
}

// publishRequest is a record that the loop asks to publish, and the configuration at that time. After another
// configuration the registry may accept what it refused before.
type publishRequest struct {
	node      cluster.Node
	config    cluster.Config
	configErr string
}

// same reports whether two requests differ in their pod networks at most.
func (r publishRequest) same(o publishRequest) bool {
	r.node.PodCIDRs, o.node.PodCIDRs = nil, nil
	return r.node.Same(&o.node) && r.config == o.config && r.configErr == o.configErr
}

// publication returns the request to publish this node's record if the record changed or the registry shows a different one, which
// altered reports.
func (k *knowledge) publication() (ask *publishRequest, altered bool) {
	want := publishRequest{node: k.buildRecord(), config: *k.config}
	if k.configErr != nil {
		want.configErr = k.configErr.Error()
	}
	listed := k.ownRecord()
	altered = k.own != nil && k.checked != k.snapshot && (listed == nil || !listed.Same(k.own))
	// After a denial, each new snapshot leads to one more attempt, because the pod network may be free.
	denied := errors.Is(k.acquireErr, cluster.ErrNotAssigned) || errors.Is(k.acquireErr, cluster.ErrConflict)
	denied = denied && k.checked != k.snapshot
	k.checked = k.snapshot
	if k.requested != nil && k.requested.same(want) && !altered && !denied {
		return nil, altered
	}
	k.requested = &want
	request := want
	if listed == nil && k.own != nil && !k.self.assigned && slices.IndexFunc(k.own.PodCIDRs, func(p netip.Prefix) bool { return !k.config.Fits(p) }) < 0 {
		request.node.PodCIDRs = k.own.PodCIDRs // the record was removed, so other nodes could take the pod networks
	}
	return &request, altered
}

// buildRecord returns the record that this node publishes for the others.
func (k *knowledge) buildRecord() cluster.Node {
	n := cluster.Node{Name: k.self.node, BackendType: k.config.Backend.Type, BackendData: []byte("null")}
	data := func(v6 bool) []byte {
		switch n.BackendType {
		case backendHostGW:
			return []byte("null")
		case backendWireGuard:
			return k.wireGuardData(v6)
		}
		return cluster.VTEP{VNI: k.config.Backend.VNI, Port: k.config.Backend.PublishedPort(), MAC: parseMAC(k.macs[deviceName(k.config.Backend.VNI, v6)])}.JSON()
	}
	if k.config.EnableIPv4 {
		n.PublicIP, n.BackendData = k.underlay.public4, data(false)
	}
	if k.config.EnableIPv6 {
		n.PublicIPv6, n.BackendV6Data = k.underlay.public6, data(true)
	}
	return n
}

// setOwn stores the result of publishing this node.
func (a *agent) setOwn(ctx context.Context, r acquisition) {
	a.acquireErr = r.err
	if r.err != nil {
		return
	}
	if a.own == nil || !slices.Equal(a.own.PodCIDRs, r.node.PodCIDRs) || a.own.PublicIP != r.node.PublicIP || a.own.PublicIPv6 != r.node.PublicIPv6 {
		a.memory.save(ctx, func(m *remembered) {
			m.PodCIDRs, m.PublicIP, m.PublicIPv6 = r.node.PodCIDRs, r.node.PublicIP, r.node.PublicIPv6
		})
		a.log.Info("published", "node", r.node.Name, "podCIDRs", r.node.PodCIDRs, "publicIP", r.node.PublicIP, "publicIPv6", r.node.PublicIPv6)
	}
	a.own, a.publisher.announced, a.recaller.unsaved = &r.node, false, true
}

// ownFaults returns the faults of the record that this node received.
func (k *knowledge) ownFaults() (faults []error) {
	switch err := k.acquireErr; {
	case k.own == nil && err != nil:
		return []error{fmt.Errorf("this node is not published: %w", err)}
	case k.own == nil:
		return []error{errors.New("this node is not published yet")}
	case errors.Is(err, cluster.ErrConflict):
		faults = append(faults, err)
	}
	for _, v6 := range []bool{false, true} {
		if _, ok := k.own.PodCIDR(v6); !ok && k.enabled(v6) {
			faults = append(faults, fmt.Errorf("the registry assigned no %s pod network to node %q", familyName(v6), k.own.Name))
		}
	}
	return faults
}
