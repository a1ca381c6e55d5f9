package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/store/cluster"
)

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

// requestPublish requests that this node's record is published, if the record changed or the
// registry shows a different one.
func (a *agent) requestPublish() {
	want := publishRequest{node: a.buildRecord(), config: *a.config}
	if a.configErr != nil {
		want.configErr = a.configErr.Error()
	}
	listed := a.ownRecord()
	altered := a.own != nil && a.checked != a.snapshot && (listed == nil || !listed.Same(a.own))
	if altered {
		a.log.Info("the registry's record of this node differs from the published one", "node", a.own.Name, "listed", listed != nil)
	}
	// After a denial, each new snapshot leads to one more attempt, because the pod network may be free.
	denied := errors.Is(a.acquireErr, cluster.ErrNotAssigned) || errors.Is(a.acquireErr, cluster.ErrConflict)
	denied = denied && a.checked != a.snapshot
	a.checked = a.snapshot
	if a.requested != nil && a.requested.same(want) && !altered && !denied {
		return
	}
	a.requested = &want
	ask := want
	if listed == nil && a.own != nil && !a.registry.assignsCIDRs && slices.IndexFunc(a.own.PodCIDRs, func(p netip.Prefix) bool { return !a.config.Fits(p) }) < 0 {
		ask.node.PodCIDRs = a.own.PodCIDRs // the record was removed, so other nodes could take the pod networks
	}
	sendLatest(a.publish, ask)
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
	a.own, a.peers, a.announced, a.unsaved = &r.node, nil, false, true
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
