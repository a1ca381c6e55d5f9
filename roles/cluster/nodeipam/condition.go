package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// nodeObject is a Node with the fields of its status that are used here.
type nodeObject struct {
	rest.Node
	Status struct {
		Conditions []condition `json:"conditions" protobuf:"4"`
		// Addresses are not read from protobuf.
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status" protobuf:"3"`
}

// condition has the compared fields of a corev1.NodeCondition.
type condition struct {
	Type   string `json:"type"   protobuf:"1"`
	Status string `json:"status" protobuf:"2"`
	Reason string `json:"reason" protobuf:"5"`
}

// conditionType is the condition that says why a Node has no pod networks. Its status is False. A Node
// with pod networks does not have it, so that it needs no request for one.
const conditionType = "cnibox.io/PodNetwork"

// condition returns nodeipam's condition of the Node, or an empty one.
func (o *nodeObject) condition() condition {
	i := slices.IndexFunc(o.Status.Conditions, func(c condition) bool { return c.Type == conditionType })
	if i < 0 {
		return condition{}
	}
	return o.Status.Conditions[i]
}

// outdated reports whether a node with pod networks has the condition, for example because a leader ended.
func (n *node) outdated() bool { return n.assigned && n.condition != condition{} }

// unfinished returns the nodes without pod networks and those whose condition is outdated.
func (t *table) unfinished() []string {
	names := t.waiting()
	for name, n := range t.nodes {
		if n.outdated() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// refusal is how the server answered changes of conditions.
type refusal struct {
	mu     sync.Mutex
	failed bool
	until  time.Time
}

// refusalPause is the time without changes of conditions after the server has refused one.
const refusalPause = 5 * time.Minute

// pauses reports whether no change is to be requested now.
func (r *refusal) pauses() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

// answered stores the result of a change, and reports whether it is the first failure after a success.
func (r *refusal) answered(err error) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = err != nil && !r.failed
	r.failed = err != nil
	if errors.Is(err, rest.ErrForbidden) {
		r.until = time.Now().Add(refusalPause)
	}
	return first
}

// conditionChange is a change of a Node's condition. An empty reason removes it.
type conditionChange struct {
	name, uid       string
	has             condition
	reason, message string
}

// patch returns the strategic merge patch. It changes the condition of this type only, and no later Node of the same name.
func (c *conditionChange) patch() any {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := map[string]any{"type": conditionType, "$patch": "delete"}
	if c.reason != "" {
		patch = map[string]any{"type": conditionType, "status": "False", "reason": c.reason, "message": fmt.Sprintf("%.1024s", c.message), "lastHeartbeatTime": now}
		if c.has.Status != "False" {
			patch["lastTransitionTime"] = now
		}
	}
	return map[string]any{"metadata": map[string]any{"uid": c.uid}, "status": map[string]any{"conditions": []any{patch}}}
}

// setCondition changes a Node's condition unless it is as wanted already. It stores the server's reply in o, and
// reports whether the condition is as wanted. It needs the verb patch on nodes/status, but nodeipam works without.
func (r *registry) setCondition(ctx context.Context, log *slog.Logger, c *conditionChange, o *nodeObject) (done bool) {
	same := c.has == condition{}
	if c.reason != "" {
		same = c.has == condition{conditionType, "False", c.reason}
	}
	if same || r.api == nil || rest.CheckName("node", c.name) != nil {
		return true
	}
	if r.refused.pauses() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := r.Patch(ctx, rest.Path("api", "v1", "nodes", c.name)+"/status", rest.StrategicMergePatch, c.patch(), o)
	if errors.Is(err, rest.ErrNotFound) || errors.Is(err, rest.ErrConflict) || errors.Is(ctx.Err(), context.Canceled) {
		return false // the Node was deleted, or made again
	}
	if r.refused.answered(err) {
		if errors.Is(err, rest.ErrForbidden) {
			err = fmt.Errorf("%w: apply nodeipam's manifest again, it has the right", err)
		}
		log.Warn("cannot change the condition "+conditionType+" of nodes", "node", c.name, "error", err)
	}
	return err == nil
}

// Reasons of events and conditions. They are kube-controller-manager's.
const (
	notAvailable     = "CIDRNotAvailable"
	assignmentFailed = "CIDRAssignmentFailed"
)

// report makes an event of a Node, unless the last one had the same reason, and sets the Node's condition.
func (c *controller) report(ctx context.Context, name, reason string, cause error) {
	c.mu.Lock()
	uid, ok := c.table.announce(name, reason)
	c.mu.Unlock()
	if ok {
		c.client.event(ctx, c.log, name, uid, reason, cause)
	}
	c.mu.Lock()
	n := c.table.nodes[name]
	if n == nil || n.assigned || n.deleting {
		c.mu.Unlock()
		return
	}
	change := conditionChange{name: name, uid: n.uid, has: n.condition, reason: reason, message: cause.Error()}
	c.mu.Unlock()
	c.change(ctx, &change)
}

// clear removes the condition of a Node with pod networks, and returns true if that must be tried again.
func (c *controller) clear(ctx context.Context, name string) (retry bool) {
	c.mu.Lock()
	n := c.table.nodes[name]
	if n == nil || !n.outdated() {
		c.mu.Unlock()
		return false
	}
	change := conditionChange{name: name, uid: n.uid, has: n.condition}
	c.mu.Unlock()
	return !c.change(ctx, &change)
}

// change changes a Node's condition in this term. The table gets the reply, whose version the next assignment needs.
func (c *controller) change(ctx context.Context, change *conditionChange) (done bool) {
	if ctx.Err() != nil || !c.term.Valid() {
		return false // the next leader changes it
	}
	var o nodeObject
	done = c.client.setCondition(ctx, c.log, change, &o)
	if done && o.Metadata.Name != "" {
		c.refresh(&o)
	}
	return done
}

// setCondition sets the Node's condition, or removes it without a reason.
func (c *cloudNode) setCondition(ctx context.Context, o *nodeObject, reason string, cause error) {
	change := conditionChange{name: c.name, uid: o.Metadata.UID, has: o.condition(), reason: reason}
	if cause != nil {
		change.message = cause.Error()
	}
	c.client.setCondition(ctx, c.log, &change, &nodeObject{})
}
