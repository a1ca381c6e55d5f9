package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// readyTimeout is the maximum time until the agents have programmed each other.
const readyTimeout = time.Minute

// Up starts a lab. When it returns, the agents run and the pods are attached. After an error, or if
// ctx ends, everything is removed. report is called at the start of each step.
func (l *Lab) Up(ctx context.Context, p Plan, report func(string)) (s *State, err error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if s, err = l.begin(p); err != nil {
		return nil, err
	}
	made := s
	defer func() {
		if err != nil {
			err = errors.Join(err, l.remove(context.WithoutCancel(ctx), made))
		}
	}()
	for _, step := range []struct {
		what string
		do   func(context.Context, *State) error
	}{
		{"the plugins' links and the registry", l.prepare},
		{"the switch", l.makeSwitch},
		{"the nodes and their agents", l.makeNodes},
		{"waiting until the agents know each other", l.await},
		{"the pods", l.attachAll},
	} {
		report(step.what)
		if err := errors.Join(ctx.Err(), step.do(ctx, s)); err != nil {
			return nil, fmt.Errorf("%s: %w", step.what, err)
		}
		if err := l.save(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// begin records the lab before anything is made. It fails if a lab exists.
func (l *Lab) begin(p Plan) (*State, error) {
	if !filepath.IsAbs(l.Dir) {
		return nil, fmt.Errorf("%w: --dir %q: not an absolute path", ErrInvalid, l.Dir)
	}
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := l.Load(); !errors.Is(err, ErrDown) {
		return nil, errors.Join(fmt.Errorf("%w in %s", ErrUp, l.Dir), err)
	}
	if entries, err := os.ReadDir(l.Dir); err != nil || len(entries) > 0 {
		return nil, errors.Join(fmt.Errorf("%w: --dir %s: the directory is not empty", ErrInvalid, l.Dir), err)
	}
	s := l.planned(p)
	for _, name := range s.namespaces() {
		if _, err := os.Lstat(filepath.Join(netops.NamespaceDir, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%w: there is a network namespace %q already", ErrUp, name), err)
		}
	}
	return s, l.save(s)
}

// installArgs returns the command line that links the plugins.
func (l *Lab) installArgs() []string { return []string{"install", "--dir", l.plugins()} }

// prepare links the plugins, writes the conflist for the pods, and fills the registry. It reserves
// a network for each node in order.
func (l *Lab) prepare(ctx context.Context, s *State) error {
	for i := range s.Nodes {
		if err := os.MkdirAll(s.Nodes[i].Dir, 0o755); err != nil {
			return err
		}
	}
	if s.Policy {
		if err := os.Mkdir(l.policies(), 0o755); err != nil {
			return err
		}
	}
	here, err := l.here()
	if err != nil {
		return err
	}
	defer here.Close()
	if _, err := l.Self.Output(ctx, here, nil, l.installArgs()); err != nil {
		return err
	}
	list := `{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "vxlan"}]}` + "\n"
	if err := smallfile.Replace(l.list(), []byte(list), 0o644); err != nil {
		return err
	}
	return l.fillRegistry(ctx, s)
}

// makeSwitch makes the bridge between the nodes.
func (l *Lab) makeSwitch(ctx context.Context, s *State) error {
	ns, err := l.Net.MakeNamespace(s.Switch)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = ensure(ctx, ns, nil,
		&netops.Link{In: netops.Host, Name: "lo", Up: true},
		&netops.Link{In: netops.Host, Name: bridge, Kind: "bridge", Up: true, Bridge: &netops.Bridge{}},
		&netops.Addr{In: netops.Host, Link: bridge, Address: netip.MustParsePrefix(switchAddress)},
	)
	if err != nil || s.Registry != "etcd" {
		return err
	}
	return l.startForwarder(s)
}

// ensure makes objects in a namespace, as Host, and in another that is connected to it, as Container.
func ensure(ctx context.Context, in, other *netops.Namespace, objects ...netops.Object) error {
	return in.Run(func() error {
		n := netops.New(netops.Options{})
		return errors.Join(n.Ensure(ctx, netops.Spec{Objects: objects}, other), n.Close())
	})
}

func (l *Lab) makeNodes(ctx context.Context, s *State) error {
	wire, err := l.open(s.Switch)
	if err != nil {
		return err
	}
	defer wire.Close()
	for i := range s.Nodes {
		if err := l.makeNode(ctx, s, wire, &s.Nodes[i]); err != nil {
			return fmt.Errorf("%s: %w", s.Nodes[i].Name, err)
		}
	}
	return nil
}

// makeNode makes a node, connects it, and starts its agent.
func (l *Lab) makeNode(ctx context.Context, s *State, wire *netops.Namespace, n *Node) error {
	ns, err := l.Net.MakeNamespace(n.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = ensure(ctx, wire, ns,
		&netops.Link{
			In: netops.Host, Name: n.Name, Kind: "veth", Master: bridge, Up: true,
			Peer: &netops.Peer{In: netops.Container, Name: uplink},
		},
		&netops.Link{In: netops.Container, Name: "lo", Up: true},
		&netops.Link{In: netops.Container, Name: uplink, Up: true},
		&netops.Addr{In: netops.Container, Link: uplink, Address: n.Address},
	)
	if err != nil {
		return err
	}
	log, err := openLog(n.log())
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{
		"agent", "-node-name", n.Name, "-iface", uplink, "-ip-masq", "-subnet-file", filepath.Join(n.Dir, "subnet.env"),
	}, l.registryFlags(s)...)
	if s.Policy {
		args = append(args, "-policy", "-policy-dir", l.policies())
	}
	_, err = l.Self.Start(ns, l.env(n), args, log)
	return err
}

// await waits until each node has programmed all others.
func (l *Lab) await(ctx context.Context, s *State) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("the agents take too long"))
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for {
			o, err := store.ReadOverlay(n.overlayFile())
			if err == nil && o.Ready && o.Peers.Programmed == len(s.Nodes)-1 {
				break
			}
			if running, rerr := l.agents(n); rerr == nil && len(running) == 0 {
				return fmt.Errorf("%s: the agent ended: %s", n.Name, tail(n.log()))
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				reason := ""
				if o != nil {
					reason = o.Reason
				}
				return fmt.Errorf("%s: %w: %s\n%s", n.Name, context.Cause(ctx), reason, tail(n.log()))
			}
		}
	}
	return nil
}

// tail returns the end of a log.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

func (l *Lab) attachAll(ctx context.Context, s *State) error {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		ns, err := l.open(n.Netns)
		if err != nil {
			return err
		}
		for j := range n.Pods {
			if err = l.attach(ctx, n, ns, &n.Pods[j], fmt.Sprintf("pod=pod%d", j+1)); err != nil {
				err = fmt.Errorf("%s: %w", n.Pods[j].Name, err)
				break
			}
		}
		if err := errors.Join(err, ns.Close()); err != nil {
			return err
		}
	}
	return nil
}

// attach runs ADD on the pod's node, like a runtime. label is for network policies.
func (l *Lab) attach(ctx context.Context, n *Node, on *netops.Namespace, p *Pod, label string) error {
	ns, err := l.Net.MakeNamespace(p.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	out, err := l.Self.Output(ctx, on, l.env(n), []string{"add", "--label", label, l.list(), p.Name, ns.Path()})
	if err != nil {
		return err
	}
	var result struct {
		IPs []struct{ Address types.IPNet }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("unexpected result of ADD: %w: %s", errors.Join(err, ErrInvalid), out)
	}
	p.Address, _ = netip.AddrFromSlice(result.IPs[0].Address.IP.To4())
	return nil
}
