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
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// readOverlay reads the agent's files and asks the agent.
func (r *reader) readOverlay(ctx context.Context) {
	o := &r.f.Overlay
	o.BootID, _ = view.Ask(r.f.Host, "boot", func() (string, error) { return r.h.Store.BootID(), nil })
	o.File, o.FileErr = ReadOverlay(r.f.Host, r.h)
	if errors.Is(o.FileErr, store.ErrNotFound) {
		o.File, o.FileErr = nil, nil
	}
	o.Env, _ = view.Ask(r.f.Host, "subnet.env", func() ([]netip.Prefix, error) { return readSubnetEnv(), nil })
	for _, n := range r.f.Networks {
		for _, p := range o.subnets() {
			if n.Overlay {
				n.addRange(rangeConf{Subnet: p.String()})
			}
		}
	}
	o.Agent, o.AgentErr = view.Ask(r.f.Host, "agent", func() (*Agent, error) { return AskAgent(ctx, r.h, r.o.Table) })
}

// ReadOverlay reads the agent's hand-off file.
func ReadOverlay(known *view.Host, h *roles.Host) (*store.Overlay, error) {
	return view.Ask(known, "overlay.json", func() (*store.Overlay, error) { return store.ReadOverlay(h.Store.OverlayPath()) })
}

// readPolicies asks the agent of a node that enforces network policies. The state files say whether the node does: without them it would wait
// for their locks again.
func (r *reader) readPolicies(ctx context.Context) {
	if s := &r.f.State; s.Node != nil || s.Keep != nil {
		return
	}
	p, host := &r.f.Policies, r.f.Host
	var err error
	p.On, err = view.Ask(host, "enforces policies", func() (bool, error) { return enforce.Marked(ctx, r.h.Store) })
	r.unread("network policies", err)
	if !p.On {
		return
	}
	p.Saved, p.SavedErr = view.Ask(host, "policy.json", func() (at time.Time, err error) {
		_, err = enforce.ReadSaved(r.h.Store)
		if saved, absent := os.Lstat(enforce.SavedPath(r.h.Store)); absent == nil && err == nil {
			at = saved.ModTime()
		}
		return at, err
	})
	p.HasTable, err = view.Ask(host, "policy table", func() (bool, error) { return podfilter.Exists(ctx) })
	r.unread("network policies", err)
	rules, err := view.Ask(host, "policy rules", func() (int, error) {
		all, err := podfilter.Counters(ctx)
		return len(all), err
	})
	r.unread("network policies", err)
	p.IsFlushed = p.HasTable && rules == 0
	p.Lost, err = view.Ask(host, "policy elements", func() (pods []string, _ error) {
		lost, err := enforce.Lost(ctx, r.h)
		for _, pod := range lost {
			pods = append(pods, pod.Namespace+"/"+pod.Name)
		}
		return pods, err
	})
	r.unread("network policies", err)
	p.Denied, p.AgentErr = view.Ask(host, "policy agent", func() (pods []string, _ error) {
		ctx, cancel := context.WithTimeout(ctx, agentTime)
		defer cancel()
		state, err := control.State(ctx, r.h.Store)
		if err != nil {
			return nil, err
		}
		for _, l := range netpolicy.NewExplainer(state.Table()).List() {
			if l.Denied {
				pods = append(pods, l.Pod)
			}
		}
		return pods, nil
	})
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
