package trace

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Self runs processes.
type Self interface {
	// Isolated runs this program to its end in new network, mount and PID namespaces, which end with it.
	Isolated(ctx context.Context, env, args []string, in io.Reader, out, log io.Writer) error
	// Plugin executes a plugin as a runtime does, and returns its standard output.
	Plugin(ctx context.Context, file string, env []string, stdin []byte) ([]byte, error)
}

// codeNetns is the CNI error for a missing network namespace.
const codeNetns = 8

// Outcome is what a call did.
type Outcome struct {
	Code  uint   `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
	// Interfaces, IPv4 and IPv6 are the numbers of interfaces and addresses of the result.
	Interfaces int           `json:"interfaces,omitempty"`
	IPv4       int           `json:"ipv4,omitempty"`
	IPv6       int           `json:"ipv6,omitempty"`
	Took       time.Duration `json:"tookNs"`
}

// Replayed is a call that was played again.
type Replayed struct {
	Role        string  `json:"role"`
	Verb        string  `json:"verb"`
	ContainerID string  `json:"containerID"`
	Recorded    Outcome `json:"recorded"`
	Replayed    Outcome `json:"replayed"`
	// Different means that only one of them failed, that they failed with different codes of the CNI specification, or
	// that their results have different numbers of interfaces or addresses.
	Different bool `json:"different"`
}

// Player plays calls in the namespaces of this process.
type Player struct {
	Self Self
	Net  *netops.Net
	// Plugins is the directory of the plugins.
	Plugins string
	// MaxPause bounds the time between the starts of two calls.
	MaxPause time.Duration
	// Played is called after each call, by several goroutines.
	Played func()

	mu sync.Mutex
	// results are the last results of ADD.
	results map[store.Key][]byte
	// netns are the paths of the containers' namespaces.
	netns map[string]string
}

// IsPlayable reports whether a call has what is needed to play it again.
func IsPlayable(c *store.TracedCall) bool { return c.Role != "" && !c.Cut && c.Stdin != "" }

// Play plays the calls with their real timing. A call waits for those that ended before it started when they were
// recorded, so that slower plugins do not change the order.
func (p *Player) Play(ctx context.Context, calls []*store.TracedCall) ([]*Replayed, error) {
	calls = slices.DeleteFunc(calls, func(c *store.TracedCall) bool { return !IsPlayable(c) })
	sorting.Stable(calls, func(a, b *store.TracedCall) int { return a.Time.Compare(b.Time) })
	p.results, p.netns = map[store.Key][]byte{}, map[string]string{}
	if err := p.prepare(ctx, calls); err != nil {
		return nil, err
	}
	out := make([]*Replayed, len(calls))
	done := make([]chan struct{}, len(calls))
	var all sync.WaitGroup
	at, start := time.Duration(0), time.Now()
	for i, c := range calls {
		if i > 0 {
			at += min(c.Time.Sub(calls[i-1].Time), p.MaxPause)
		}
		done[i] = make(chan struct{})
		select {
		case <-time.After(time.Until(start.Add(at))):
		case <-ctx.Done():
		}
		all.Go(func() {
			defer close(done[i])
			for j, earlier := range calls[:i] {
				if !earlier.Time.Add(earlier.Took).After(c.Time) {
					<-done[j]
				}
			}
			out[i] = p.play(ctx, c)
			p.Played()
		})
	}
	all.Wait()
	return out, ctx.Err()
}

// play plays one call.
func (p *Player) play(ctx context.Context, c *store.TracedCall) *Replayed {
	r := &Replayed{Role: c.Role, Verb: c.Verb, ContainerID: c.ContainerID, Recorded: outcome([]byte(c.Result), nil)}
	r.Recorded.Code, r.Recorded.Error, r.Recorded.Took = c.Code, c.Error, c.Took
	conf, netns := []byte(c.Stdin), p.netns[c.ContainerID]
	if c.Code == codeNetns || c.Netns == "" {
		netns = c.Netns
	}
	p.mu.Lock()
	prev := p.results[c.Key()]
	p.mu.Unlock()
	if have, err := rawjson.Get(conf, "prevResult"); err == nil && have != nil && prev != nil {
		if changed, err := rawjson.Set(conf, "prevResult", prev); err == nil {
			conf = changed
		}
	}
	env := []string{"CNI_COMMAND=" + c.Verb, "CNI_PATH=" + p.Plugins}
	for _, kv := range [][2]string{
		{"CNI_CONTAINERID", c.ContainerID}, {"CNI_NETNS", netns}, {"CNI_IFNAME", c.IfName}, {"CNI_ARGS", c.Args}, {"TRACEPARENT", c.TraceParent},
	} {
		if kv[1] != "" {
			env = append(env, kv[0]+"="+kv[1])
		}
	}
	start := time.Now()
	stdout, err := p.Self.Plugin(ctx, filepath.Join(p.Plugins, filepath.Base(c.Role)), env, conf)
	took := time.Since(start)
	r.Replayed = outcome(stdout, err)
	r.Replayed.Took = took
	r.Different = differ(&r.Recorded, &r.Replayed)
	if err == nil && c.Verb == string(roles.Add) {
		p.mu.Lock()
		p.results[c.Key()] = stdout
		p.mu.Unlock()
	}
	return r
}

// outcome reads the output of a plugin that ended with an error or nil.
func outcome(stdout []byte, ended error) Outcome {
	var o Outcome
	if ended != nil {
		var object struct {
			Code uint   `json:"code"`
			Msg  string `json:"msg"`
		}
		if json.Unmarshal(stdout, &object) != nil || object.Code == 0 {
			object.Code, object.Msg = types.ErrInternal, ended.Error()
		}
		return Outcome{Code: object.Code, Error: object.Msg}
	}
	var result struct {
		Interfaces []json.RawMessage `json:"interfaces"`
		IPs        []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	_ = json.Unmarshal(stdout, &result) // DEL and CHECK print nothing
	o.Interfaces = len(result.Interfaces)
	for _, ip := range result.IPs {
		if ip.Address.Addr().Is4() {
			o.IPv4++
		} else {
			o.IPv6++
		}
	}
	return o
}

// differ compares what two implementations can have in common. Codes of 100 and more are an implementation's own.
func differ(a, b *Outcome) bool {
	if a.Code != 0 && b.Code != 0 {
		return a.Code != b.Code && a.Code < 100 && b.Code < 100
	}
	return a.Code != b.Code || a.Interfaces != b.Interfaces || a.IPv4 != b.IPv4 || a.IPv6 != b.IPv6
}

// prepare makes the containers' namespaces, and a link for each host device that a configuration names.
func (p *Player) prepare(ctx context.Context, calls []*store.TracedCall) error {
	uplinks := []string{"eth0"}
	for _, c := range calls {
		var conf struct {
			Master string `json:"master"`
		}
		if json.Unmarshal([]byte(c.Stdin), &conf) == nil && roles.LinkName(conf.Master) == nil && !slices.Contains(uplinks, conf.Master) {
			uplinks = append(uplinks, conf.Master)
		}
		if _, made := p.netns[c.ContainerID]; made || c.ContainerID == "" {
			continue
		}
		ns, err := p.Net.MakeNamespace("container" + strconv.Itoa(len(p.netns)))
		if err != nil {
			return err
		}
		p.netns[c.ContainerID] = ns.Path()
		if err := ns.Close(); err != nil {
			return err
		}
	}
	outside, err := p.Net.MakeNamespace("outside")
	if err != nil {
		return err
	}
	defer outside.Close()
	objects := []netops.Object{&netops.Link{In: netops.Host, Name: "lo", Up: true}}
	for i, name := range uplinks {
		objects = append(objects, &netops.Link{
			In: netops.Host, Name: name, Kind: "veth", Up: true, Peer: &netops.Peer{In: netops.Container, Name: "peer" + strconv.Itoa(i)},
		})
	}
	// RFC 5737: for documentation, so that no pod has it.
	gateway := netip.MustParseAddr("192.0.2.1")
	objects = append(objects,
		&netops.Addr{In: netops.Host, Link: "eth0", Address: netip.MustParsePrefix("192.0.2.2/24")},
		&netops.Route{In: netops.Host, Link: "eth0", Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: gateway},
	)
	if err := p.Net.Ensure(ctx, netops.Spec{Objects: objects}, outside); err != nil {
		return fmt.Errorf("make the sandbox's links: %w", err)
	}
	return nil
}
