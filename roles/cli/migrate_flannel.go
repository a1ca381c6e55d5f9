package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/leftovers"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// The agent takes over flanneld's device, routes and record by itself: docs/overlay.md. A migration
// makes sure that only one of them runs, and that the rules of one are removed after those of
// the other are there.

const (
	flanneldName      = "flanneld"
	flannelSubnetFile = "/run/flannel/subnet.env"
	// masqueradeChain is flanneld's chain of --ip-masq.
	masqueradeChain = "FLANNEL-POSTRTG"
)

// lookFlannel are the steps from flanneld to the agent.
func (m *migrator) lookFlannel() ([]step, error) {
	running, err := findProcess(flanneldName)
	if err != nil {
		return nil, err
	}
	rules, err := leftovers.Of(m.h.Net).Flannel(m.c.Context)
	if err != nil {
		return nil, err
	}
	if running != nil {
		m.record.Flanneld = withoutPassword(running.args)
	}
	if err := m.canReplaceFlannel(running, rules); err != nil {
		return nil, err
	}
	steps, err := m.pluginSteps()
	if err != nil {
		return nil, err
	}
	stop := step{Name: "flanneld", State: stepDone, What: "flanneld does not run", Why: "its routes and device keep forwarding until the agent takes them over"}
	if running != nil {
		stop.State, stop.What = stepManual, fmt.Sprintf("stop flanneld, process %d", running.pid)
	}
	encrypts, err := m.encrypts()
	if err != nil {
		return nil, err
	}
	if encrypts {
		steps = append(steps, m.guardStep(running))
		stop.Why = "it deletes its device: pods do not reach other nodes until the agent runs"
	}
	agent, err := m.agentStep(rules, encrypts)
	remove := step{
		Name: "rules", State: stepDone, What: "flanneld has no rules",
		Why: "flanneld's masquerade hides pods' addresses from the policies of other nodes",
		do:  m.removeFlannelRules,
	}
	if len(rules) > 0 {
		remove.State, remove.What = stepTodo, "remove "+strings.Join(rules, ", ")
	}
	return append(steps, stop, agent, remove), err
}

// canReplaceFlannel returns an error if the agent cannot replace the node's flannel.
func (m *migrator) canReplaceFlannel(running *process, rules []string) error {
	links, err := m.h.Net.Links(m.c.Context, nil)
	if err != nil {
		return err
	}
	_, err = os.Stat(flannelSubnetFile)
	found := running != nil || len(rules) > 0 || err == nil || m.record.Guarded != ""
	for _, l := range links {
		backend := map[string]string{"flannel.ipip": "ipip", "flannel0": "udp"}[l.Name]
		if backend != "" {
			return fmt.Errorf("flanneld has the backend %q, device %q, which 'migrate' does not take over: see docs/migrate.md#flannel", backend, l.Name)
		}
		found = found || isWireGuard(&l) || l.Kind == "vxlan" && (strings.HasPrefix(l.Name, "flannel.") || strings.HasPrefix(l.Name, "flannel-v6."))
	}
	if hasFlag(m.record.Flanneld, "ip-blackhole-route") {
		return errors.New("flanneld has the flag --ip-blackhole-route, which the agent does not have: start flanneld without it first")
	}
	if found {
		return nil
	}
	return advice.With(errors.New("there is no flannel on this node: no process flanneld in this network namespace, and none of its devices, rules and files"),
		"run it on the node itself, not in a container")
}

func isWireGuard(l *netops.LinkInfo) bool {
	return l.Kind == "wireguard" && strings.HasPrefix(l.Name, "flannel-wg")
}

// encrypts reports whether the node has the backend wireguard. Between flanneld and the agent it has no device.
func (m *migrator) encrypts() (bool, error) {
	links, err := m.h.Net.Links(m.c.Context, nil)
	return m.record.Guarded != "" || slices.ContainsFunc(links, func(l netops.LinkInfo) bool { return isWireGuard(&l) }), err
}

// guardStep is done when packets to other nodes' pods are refused without flanneld's device. Otherwise they would take the default
// route, unencrypted, when flanneld ends.
func (m *migrator) guardStep(running *process) step {
	s := step{
		Name: "guard", State: stepDone, What: "packets to the pods of other nodes are not sent unencrypted",
		Why: "flanneld deletes its device when it ends; then packets would take the default route, unencrypted",
	}
	if running != nil && m.record.Guarded != m.h.Store.BootID() {
		s.State, s.What = stepTodo, "add routes that refuse packets to the pods of other nodes while no device encrypts them"
		s.do = func() error {
			if _, err := m.runAgentVerb("agent guard", nil); err != nil {
				return err
			}
			m.record.Guarded = m.h.Store.BootID()
			return m.save()
		}
	}
	return s
}

// agentStep is done when the agent runs and has programmed all nodes.
func (m *migrator) agentStep(rules []string, encrypts bool) (step, error) {
	s := step{Name: "agent", State: stepManual, Why: "it takes over flanneld's device with its MAC address, the routes and the record"}
	if encrypts {
		s.Why = "it takes over flanneld's record, and publishes a key of its own: pods reach the other nodes when these have read it"
	}
	is, err := m.agentStatus()
	command := strings.TrimSpace("cnibox agent " + strings.Join(m.record.Flanneld, " "))
	switch {
	case is == nil:
		s.What = "start the agent with flanneld's flags: " + command
		return s, nil
	case err != nil:
		s.What = "wait for the agent: " + err.Error() //nolint:nilerr // the reason is a part of the step
		return s, nil
	}
	o, err := store.ReadOverlay(m.h.Store.OverlayPath())
	if err != nil {
		return s, err
	}
	masquerades := slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, masqueradeChain) })
	if !o.IPMasq && (masquerades || hasFlag(m.record.Flanneld, "ip-masq")) {
		s.What = "start the agent again with --ip-masq, which flanneld has: without it pods do not reach addresses outside"
		return s, nil
	}
	s.State, s.What = stepDone, "the agent runs and has programmed all nodes"
	return s, nil
}

// agentStatus asks the agent. The answer is nil if no agent runs.
func (m *migrator) agentStatus() (any, error) { return m.runAgentVerb("agent status", nil) }

// runAgentVerb runs a command of the role agent.
func (m *migrator) runAgentVerb(name string, flags map[string]string) (any, error) {
	for _, r := range m.Table.Roles() {
		verb := r.Verb(name)
		if verb == nil {
			continue
		}
		h, done, err := m.host(m.c.Context, r.Name())
		if err != nil {
			return nil, err
		}
		defer done()
		return verb.Run(m.c.Context, h, flags, nil)
	}
	return nil, fmt.Errorf("%w: this binary has no agent", roles.ErrNoPlugin)
}

func (m *migrator) removeFlannelRules() error {
	rules, err := leftovers.Of(m.h.Net).Flannel(m.c.Context)
	if err == nil {
		err = leftovers.Of(m.h.Net).RemoveFlannel(m.c.Context)
	}
	if errors.Is(err, netops.ErrNotSupported) {
		return advice.With(err, "install the program, or run 'iptables-save' on the node")
	}
	if err != nil {
		return err
	}
	for _, r := range rules {
		m.changed(change{Action: "removed", Name: r})
	}
	return nil
}

// backFlannel are the steps from the agent to flanneld. flanneld takes over the device before the agent's rules
// are removed, so connections continue.
func (m *migrator) backFlannel() ([]step, error) {
	restore, err := m.restoreStep()
	if err != nil {
		return nil, err
	}
	running, err := findProcess(flanneldName)
	if err != nil {
		return nil, err
	}
	stop := step{Name: "agent", State: stepDone, What: "the agent does not run", Why: "its routes and device keep forwarding until flanneld takes them over"}
	if is, _ := m.agentStatus(); is != nil { // an error means that it is not ready
		stop.State, stop.What = stepManual, "stop the agent"
	}
	encrypts, err := m.encrypts()
	if err != nil {
		return nil, err
	}
	start := step{Name: "flanneld", State: stepDone, What: "flanneld has taken over the device", Why: "it takes over the device with its MAC address, the routes and the record"}
	taken := running != nil
	if encrypts {
		start.Why = "it makes the device again, with its own key; until then packets to other nodes are refused"
		if taken {
			taken, err = m.flanneldEncrypts()
		}
	}
	if !taken && !m.record.Released {
		start.State = stepManual
		start.What = strings.TrimSpace("start flanneld and wait until it is ready: flanneld " + strings.Join(m.record.Flanneld, " "))
	}
	release := step{Name: "rules", State: stepDone, What: "the agent has no rules and routes", do: m.release}
	if !m.record.Released {
		release.State, release.What = stepTodo, "remove the agent's nftables table, its rules in iptables' FORWARD chain, the routes that flanneld did not replace, nexthops and files"
	}
	return []step{restore, stop, start, release, m.drainStep()}, err
}

// flanneldEncrypts reports whether flanneld has made a route over each WireGuard device. It makes the devices before the routes. Until then the
// agent's routes that refuse packets must stay.
func (m *migrator) flanneldEncrypts() (bool, error) {
	links, err := m.h.Net.Links(m.c.Context, nil)
	if err != nil {
		return false, err
	}
	routes, err := m.h.Net.Routes(m.c.Context, nil, unix.RT_TABLE_MAIN)
	if err != nil {
		return false, err
	}
	made := func(l *netops.LinkInfo) bool {
		return slices.ContainsFunc(routes, func(r netops.Route) bool { return r.Link == l.Name && r.Protocol == unix.RTPROT_BOOT })
	}
	found := false
	for i := range links {
		if l := &links[i]; isWireGuard(l) {
			if !made(l) {
				return false, nil
			}
			found = true
		}
	}
	return found, nil
}

// release removes what the agent left, except for the device, which flanneld has.
func (m *migrator) release() error {
	if _, err := m.runAgentVerb("agent cleanup", map[string]string{"keep-device": "true"}); err != nil {
		return err
	}
	m.record.Released = true
	return m.save()
}

// hasFlag reports whether a switch is on.
func hasFlag(args []string, name string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		flag, value, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		on, err := strconv.ParseBool(cmp.Or(value, "true"))
		return flag == name && err == nil && on
	})
}

// withoutPassword returns flanneld's arguments without etcd's password.
func withoutPassword(args []string) []string {
	shown := slices.Clone(args)
	for i, a := range shown {
		name, _, found := strings.Cut(a, "=")
		switch {
		case strings.TrimLeft(name, "-") != "etcd-password":
		case found:
			shown[i] = name + "=…"
		case i+1 < len(shown):
			shown[i+1] = "…"
		}
	}
	return shown
}
