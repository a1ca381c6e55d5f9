package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// readOverlay reads the agent's files and asks the agent.
func (r *reader) readOverlay(ctx context.Context) {
	o := &r.f.Overlay
	o.BootID = r.h.Store.BootID()
	o.File, o.FileErr = store.ReadOverlay(r.h.Store.OverlayPath())
	if errors.Is(o.FileErr, store.ErrNotFound) {
		o.File, o.FileErr = nil, nil
	}
	o.Env = readSubnetEnv()
	for _, n := range r.f.Networks {
		for _, p := range o.subnets() {
			if n.Overlay {
				n.addRange(rangeConf{Subnet: p.String()})
			}
		}
	}
	o.Agent, o.AgentErr = AskAgent(ctx, r.h, r.o.Table)
}

// readPolicies asks the agent of a node that enforces network policies. The state files say whether the node does: without them it would wait
// for their locks again.
func (r *reader) readPolicies(ctx context.Context) {
	if s := &r.f.State; s.Node != nil || s.Keep != nil {
		return
	}
	p := &r.f.Policies
	var err error
	p.On, err = enforce.Marked(ctx, r.h.Store)
	r.unread("network policies", err)
	if !p.On {
		return
	}
	_, p.SavedErr = enforce.ReadSaved(r.h.Store)
	if saved, err := os.Lstat(enforce.SavedPath(r.h.Store)); err == nil && p.SavedErr == nil {
		p.Saved = saved.ModTime()
	}
	p.HasTable, err = podfilter.Exists(ctx)
	r.unread("network policies", err)
	rules, err := podfilter.Counters(ctx)
	r.unread("network policies", err)
	p.IsFlushed = p.HasTable && len(rules) == 0
	lost, err := enforce.Lost(ctx, r.h)
	r.unread("network policies", err)
	for _, pod := range lost {
		p.Lost = append(p.Lost, pod.Namespace+"/"+pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	state, err := control.State(ctx, r.h.Store)
	p.AgentErr = err
	if err != nil {
		return
	}
	for _, l := range netpolicy.NewExplainer(state.Table()).List() {
		if l.Denied {
			p.Denied = append(p.Denied, l.Pod)
		}
	}
}

// AskAgent runs `cnibox agent status`. Without an agent it returns nil and why.
func AskAgent(ctx context.Context, h *roles.Host, table roles.Table) (*Agent, error) {
	role, ok := table.Lookup("agent")
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	status, err := role.Verb("agent status").Run(ctx, h, nil, nil)
	raw, encodeErr := json.Marshal(status)
	if encodeErr != nil || string(raw) == "null" {
		return nil, err
	}
	a := new(Agent)
	return a, json.Unmarshal(raw, a)
}

// readSubnetEnv returns the node's subnets in flannel's file.
func readSubnetEnv() (all []netip.Prefix) {
	raw, err := smallfile.Read(subnetEnv, 64<<10)
	if err != nil {
		return nil
	}
	for sc := bufio.NewScanner(bytes.NewReader(raw)); sc.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(sc.Text()), "=")
		if p, err := netip.ParsePrefix(value); err == nil && (key == "FLANNEL_SUBNET" || key == "FLANNEL_IPV6_SUBNET") {
			all = append(all, p.Masked())
		}
	}
	return all
}
